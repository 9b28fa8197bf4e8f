/* How many token rows the recorded decode steps have where nobody says otherwise: the one list of them. */
#include "forward/forward.h"

int mm3_graph_shape(int m)
{
    static const int shape[] = { 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512 };
    for (int i = 0; i < MM3_COUNT(shape); i++)
        if (shape[i] >= m) return shape[i];
    return 0;
}
