/* internal: what the files of this folder share and nobody else sees. */
#ifndef MM3_MODEL_INTERNAL_H
#define MM3_MODEL_INTERNAL_H

#include "model/model.h"

/* Join eos_token_id of an object (absent, null, an id, or a list of ids) to ids[0..*n), without repeats.
 * errors  MM3_ERR_FORMAT an entry is no id in [0, max_id]; MM3_ERR_UNSUPPORTED more than max_ids */
MM3_MUST_USE mm3_status mm3__stop_ids(const json_t *object, const char *what, int64_t max_id, int32_t *ids, int *n,
                                      int max_ids);

#endif
