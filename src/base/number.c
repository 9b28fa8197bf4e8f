/* Numbers from text, the split of work between workers, a hash. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

void mm3_share(int n, int i, int n_workers, int *begin, int *end)
{
    *begin = (int)((int64_t)n * i / n_workers);
    *end = (int)((int64_t)n * (i + 1) / n_workers);
}

bool mm3_parse_int(const char *s, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    long long v;
    if (!((*s >= '0' && *s <= '9') || *s == '-')) return false;
    errno = 0;
    v = strtoll(s, &end, 10);
    if (errno || *end || end == s || v < low || v > high) return false;
    *out = v;
    return true;
}

bool mm3_parse_double(const char *s, double low, double high, double *out)
{
    char *end;
    double v;
    if (!((*s >= '0' && *s <= '9') || *s == '-' || *s == '.') || strpbrk(s, "xX")) return false; /* no 0x10 */
    v = strtod(s, &end);
    if (*end || end == s || !(v >= low && v <= high)) return false;
    *out = v;
    return true;
}

uint32_t mm3_hash(uint32_t h, const void *bytes, size_t n)
{
    for (const unsigned char *p = bytes; n; n--) h = (h ^ *p++) * 16777619u;
    return h;
}
