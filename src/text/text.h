/* text: tokenizer, chat template, output parser. Knows nothing of weights or devices.
 * The public header of this folder; all that others need is in mm3.h. */
#ifndef MM3_TEXT_H
#define MM3_TEXT_H

#include "mm3.h"

#endif
