// The part of attention that is compiled once per instruction set.

#pragma once

#include "kernels/cpu/paged_attention.h"

namespace pomona::kernels {

// Consecutive token rows of one sequence, for one KV head: they share each block they load.
struct Tile {
  int64_t first_token, tokens;
  int64_t kv_head;
};

// Buffers of one tile, 64-byte aligned; widths are padded to kPadding floats. A tile has
// tokens * (query heads per KV head) rows.
struct TileScratch {
  int64_t key_columns;  // block_size, padded
  int64_t value_width;  // values.dim, padded
  float* queries;       // [rows, keys.dim]
  float* keys;          // [keys.dim, key_columns], one block transposed
  float* values;        // [block_size, value_width], one block
  float* scores;        // [rows, key_columns]
  float* sums;          // [rows, value_width], weighted values so far
  float* peak;          // [rows], largest score so far, in powers of two
  float* total;         // [rows], softmax denominator so far
};

constexpr int64_t kPadding = 16;  // the lanes of the widest variant

using AttendTile = void(const Attention&, const Tile&, const TileScratch&);

namespace generic {
AttendTile attend_tile;
}
namespace neon {
AttendTile attend_tile;
}
namespace avx2 {
AttendTile attend_tile;
}
namespace avx512 {
AttendTile attend_tile;
}

}  // namespace pomona::kernels
