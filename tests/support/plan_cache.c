#include <stdio.h>

#include "support/expect.h"
#include "support/plan_cache.h"
#include "tune/tune.h"

char *plan_cache_file(const char *dir)
{
    mm3_device *d;
    mm3_plan_head head;
    char *path;
    EXPECT_OK(mm3_device_open(&d, 1));
    mm3_plan_head_of_device(&head, mm3_device_info_of(d), MM3_TUNE_POLICY, MM3_TUNE_WORKLOAD);
    mm3_device_close(&d);
    assert_non_null(path = mm3_plan_cache_path(dir, &head));
    return path;
}

const char *plan_cache_add_foreign(const char *path)
{
    static char line[128];
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    snprintf(line, sizeof line, "linear m=9 n=32 k=32 w=mx act=w8a8 | native | alone | src %s\n",
             mm3_kernel_source(mm3_kernel_find(MM3_OP_LINEAR, "cpu", "native")));
    fputs(line, f);
    assert_int_equal(fclose(f), 0);
    return line;
}
