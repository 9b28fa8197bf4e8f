/* sweep_cases: the list of cases that a sweep goes through. Internal to this folder. */
#ifndef MM3_TUNE_SWEEP_CASES_H
#define MM3_TUNE_SWEEP_CASES_H

#include "tune/cases.h"

/* One case, and what else it is for. */
typedef struct mm3__listed_case {
    mm3_case_spec spec;
    bool rows;   /* also for row invariance */
    bool device; /* also on the device's own threads */
} mm3__listed_case;
typedef struct mm3__case_list {
    mm3__listed_case *item; /* owned */
    int n, max;
} mm3__case_list;
/* What the sweep asks for: the operation's own list, or its one shape. Empty after an error.
 * errors  MM3_ERR_NOMEM; MM3_ERR_ARG no case is left */
mm3_status mm3__case_list_make(mm3__case_list *list, const mm3_sweep *sweep);
void mm3__case_list_free(mm3__case_list *list);

#endif
