/* mm3 tokenize: text to token ids and back. */
#include "cli/cli.h"

static int encode(const mm3_tokenizer *tokenizer, bool special)
{
    char *text = NULL;
    size_t n_bytes = 0;
    int32_t *ids = NULL;
    int n = 0;
    mm3_status st;
    if (!cli_read_text("-", &text, &n_bytes)) return CLI_FAILED;
    st = mm3_tokenizer_encode(tokenizer, text, n_bytes, special, &ids, &n);
    mm3_free(text);
    if (st != MM3_OK) return cli_failed();
    for (int i = 0; i < n; i++) printf("%s%d", i ? " " : "", (int)ids[i]);
    putchar('\n');
    mm3_free(ids);
    return CLI_DONE;
}

static int decode(const mm3_tokenizer *tokenizer, bool special)
{
    char *text = NULL;
    size_t n_bytes = 0;
    int32_t *ids = NULL;
    int n = 0;
    mm3_status st;
    if (!cli_read_ids("-", &ids, &n)) return CLI_FAILED;
    st = mm3_tokenizer_decode(tokenizer, ids, n, special, &text, &n_bytes);
    mm3_free(ids);
    if (st != MM3_OK) return cli_failed();
    fwrite(text, 1, n_bytes, stdout);
    mm3_free(text);
    return CLI_DONE;
}

int cmd_tokenize(int argc, char **argv)
{
    const char *model = NULL;
    bool special = false, wants_text = false;
    const cli_option options[] = {
        { "model", 'm', CLI_TEXT, &model, "DIR", "folder with tokenizer.json; else $MM3_MODEL, else\nmodels/tiny-m3", 0,
          0 },
        { "special", 0, CLI_FLAG, &special, NULL, "special tokens: match them in the text, or show them", 0, 0 },
        { "decode", 0, CLI_FLAG, &wants_text, NULL, "from ids to text", 0, 0 },
    };
    mm3_tokenizer *tokenizer = NULL;
    int status = cli_parse(argc, argv, options, sizeof options / sizeof options[0], NULL, 0);
    if (status != CLI_GO) return status;
    if (!(model = cli_model_dir(model))) return CLI_USAGE;
    if (mm3_tokenizer_open(&tokenizer, model) != MM3_OK) return cli_failed();
    status = wants_text ? decode(tokenizer, special) : encode(tokenizer, special);
    mm3_tokenizer_close(&tokenizer);
    return status;
}
