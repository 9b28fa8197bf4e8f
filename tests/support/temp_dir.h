/* temp_dir: a folder of its own for a test, and files in it. Ends the program when the system refuses. */
#ifndef TEST_TEMP_DIR_H
#define TEST_TEMP_DIR_H

#include <stddef.h>

/* A new empty folder below $TMPDIR (or /tmp). */
char *test_temp_dir(void);
/* Remove it with all it holds; sets *dir to NULL. */
void test_temp_dir_remove(char **dir);
/* "dir/name", for free(). */
char *test_path(const char *dir, const char *name);
/* Write a whole file, replacing it. */
void test_write_file(const char *dir, const char *name, const void *bytes, size_t n_bytes);
void test_write_text(const char *dir, const char *name, const char *text);
/* A whole file, NUL-terminated, for free(). */
char *test_read_file(const char *dir, const char *name, size_t *n_bytes);
/* Files in the folder whose name contains `part`. */
int test_count_files(const char *dir, const char *part);
/* Print why and abort: a test's own surroundings are broken. */
void test_die(const char *what, const char *which);

#endif
