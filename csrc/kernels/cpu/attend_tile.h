// The part of attention that is compiled once per instruction set.
//
// The keys of a row are taken in chunks, each one step of an online softmax, and the chunks of a
// split are summed up by themselves: a peak, a denominator, weighted values. Splits are then folded
// in ascending order. Chunks and splits begin at fixed positions, so a row's result is the same
// whether one tile goes through all of its splits or each split is a tile of its own.

#pragma once

#include "kernels/cpu/paged_attention.h"

namespace pomona::kernels {

constexpr int64_t kChunk = 64;   // keys whose scores are kept at once
constexpr int64_t kSplit = 256;  // long enough to stream, short enough to share out one row

constexpr int64_t kPadding = 16;  // the lanes of the widest variant

// What rows have summed up over some of their keys.
struct Sums {
  float* values;  // [rows, value_width], weighted
  float* peak;    // [rows], the largest score in powers of two, -inf before the first key
  float* total;   // [rows], softmax denominator
};

enum class Stage {
  kWhole,  // all keys, and writes `out`
  kSplit,  // one split, into `partial`
  kMerge,  // folds the partial sums of splits [split, end_split), and writes `out`
};

// Consecutive token rows of one sequence, for some KV heads. Its rows are ordered by KV head, then
// token, then query head; there are heads * tokens * (query heads per KV head) of them.
struct Tile {
  int64_t first_token, tokens;
  int64_t first_head, heads;
  Stage stage;
  int64_t split, end_split;
  Sums partial;            // of `split`
  int64_t partial_stride;  // floats from one split's to the next one's, for all three parts
};

// Buffers of one tile, 64-byte aligned; widths are padded to kPadding floats.
struct TileScratch {
  int64_t value_width;  // values.dim, padded
  float* queries;       // [rows, keys.dim]
  float* keys;          // [keys.dim, kChunk], a chunk transposed
  float* values;        // [kChunk, value_width]
  float* scores;        // [rows of one KV head, kChunk]
  Sums split, all;
};

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
