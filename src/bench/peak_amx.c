/* Multiplying with AMX tiles of BF16. */
#include <immintrin.h>
#include <string.h>

#include "bench/ceiling.h"

/* Eight tiles of 16 rows of 64 bytes: four of sums, two of each factor. */
double mm3__multiply_amx(long n, float *sink)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    uint16_t factor[16 * 32];
    float sum[16 * 16];
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    for (int i = 0; i < 16 * 32; i++) factor[i] = i % 2 ? 0x3F80 : 0xBF80; /* rows add up to 0 with equal columns */
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, factor, 64);
    _tile_loadd(5, factor, 64);
    _tile_loadd(6, factor, 64);
    _tile_loadd(7, factor, 64);
    n /= 16; /* a tile takes 16 clocks */
    for (long i = 0; i < n; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, 64);
    *sink += sum[0];
    _tile_stored(3, sum, 64);
    *sink += sum[0];
    _tile_release();
    return (double)n * 4 * 16 * 16 * 32 * 2;
}
