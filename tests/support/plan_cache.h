/* plan_cache: the cache file of an engine's decisions, and a line in it that is another model's. */
#ifndef MM3_TESTS_PLAN_CACHE_H
#define MM3_TESTS_PLAN_CACHE_H

/* The cache file, in a folder, of engines with one thread on this machine; for mm3_free(). */
char *plan_cache_file(const char *dir);
/* Append a decision that is as good as any, and none of a small model's. Returns the line: whoever writes the file
 * must keep it. */
const char *plan_cache_add_foreign(const char *path);

#endif
