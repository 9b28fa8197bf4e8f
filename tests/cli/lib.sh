# shellcheck shell=bash disable=SC2034
# For test scripts: TAP lines, and runs of the program. Source it from the repository's root:
#   . tests/cli/lib.sh        ... checks ...        finish
: "${BUILD:=build}" "${MM3:=$PWD/$BUILD/mm3}"
unset MM3_MODEL
model=models/tiny-m3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache # never the user's
tune='--tune off'                # what most scripts test does not depend on which kernels win
n_ok=0 n_not_ok=0
ok() {
    n_ok=$((n_ok + 1))
    echo "ok $((n_ok + n_not_ok)) - $*"
}
not_ok() {
    n_not_ok=$((n_not_ok + 1))
    echo "not ok $((n_ok + n_not_ok)) - $*"
}
# check NAME COMMAND...: ok if the command succeeds
check() {
    local name=$1
    shift
    if "$@"; then ok "$name"; else not_ok "$name"; fi
}
# same NAME WANT GOT
same() {
    if [ "$2" = "$3" ]; then
        ok "$1"
    else
        not_ok "$1"
        printf '# want: %s\n# got:  %s\n' "$(head -c 400 <<<"$2")" "$(head -c 400 <<<"$3")"
    fi
}
# mm3 ARGUMENT...: the program; commands that open an engine get $tune first
mm3() {
    local command=${1-}
    case $command in
    generate | chat | score)
        shift
        # shellcheck disable=SC2086
        "$MM3" "$command" $tune "$@"
        ;;
    *) "$MM3" "$@" ;;
    esac
}
# run ARGUMENT...: the same; leaves $status, $tmp/out, $tmp/err. Standard input is passed on.
run() {
    mm3 "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
}
# fails STATUS PATTERN ARGUMENT...: the program ends with STATUS, prints nothing, and one line on standard error that
# starts with 'mm3: ' and matches the extended pattern
fails() {
    local want=$1 pattern=$2
    shift 2
    run "$@"
    if [ "$status" = "$want" ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] &&
        grep -qE "^mm3: .*($pattern)" "$tmp/err"; then
        ok "fails ($want): ${*:-nothing}"
    else
        not_ok "fails ($want): ${*:-nothing}"
        echo "# status $status, $(wc -c <"$tmp/out") bytes printed; want $pattern"
        head -n 5 "$tmp/err" | sed 's/^/# /'
    fi
}
# Without jq: what a JSON text on one line has under a key. array KEY FILE: the numbers, apart by blanks.
array() { grep -oE "\"$1\": ?\[[^]]*\]" "$2" | head -n 1 | sed -E 's/^[^[]*\[//; s/\]//; s/, ?/ /g'; }
scalar() { grep -oE "\"$1\": ?(\"([^\"\\]|\\\\.)*\"|[-+0-9.eE]+|null|true|false)" "$2" | head -n 1 | sed -E 's/^"[^"]*": ?//'; }
finish() {
    echo "1..$((n_ok + n_not_ok))"
    [ "$n_not_ok" -eq 0 ]
    exit
}
