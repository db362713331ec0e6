// Matrix products with model weights, on the CPU.
//
// Every output element is summed in one order, whatever the number of rows, the threads or the
// instruction set: over blocks of kSumBlock values of the depth, each block a chain of fused
// multiply-adds in the order of the depth that starts at zero, the blocks added up in order. (The
// generic variant multiplies and adds in two roundings.) Weights are brought to float32 first, a
// quantized one as fma(scale, code, bias).
//
// The unit of work is kUnit columns. A unit can be computed by any thread; nothing here starts one.
//
// Thread-safety: all functions may be called from any thread at once.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/weights.h"

namespace pomona::kernels {

constexpr int64_t kUnit = 32;
constexpr int64_t kSumBlock = 256;

// More rows than this in one product only cost cache: callers cut longer ones.
constexpr int64_t kRowBlock = 252;

[[gnu::always_inline]] inline int64_t units_of(int64_t columns) {
  return (columns + kUnit - 1) / kUnit;
}

// Where row `row`, position `k` of packed activations lies: tiles of rows, each [depth][tile rows],
// so that a tile's rows are neighbours. The tiles of a product are as equal as can be.
class PackedLayout {
 public:
  PackedLayout(int64_t rows, int64_t depth);

  [[gnu::always_inline]] int64_t rows() const { return rows_; }
  [[gnu::always_inline]] int64_t depth() const { return depth_; }
  [[gnu::always_inline]] int64_t floats() const { return rows_ * depth_; }
  [[gnu::always_inline]] int64_t tile_rows() const {
    return tile_rows_;
  }  // of all tiles but the last
  [[gnu::always_inline]] int64_t tiles() const {
    return tile_rows_ == 0 ? 0 : (rows_ + tile_rows_ - 1) / tile_rows_;
  }

  [[gnu::always_inline]] int64_t first_row(int64_t tile) const { return tile * tile_rows_; }
  [[gnu::always_inline]] int64_t rows_of(int64_t tile) const {
    const int64_t left = rows_ - first_row(tile);
    return left < tile_rows_ ? left : tile_rows_;
  }
  // Floats before the tile.
  [[gnu::always_inline]] int64_t offset_of(int64_t tile) const { return first_row(tile) * depth_; }

 private:
  int64_t rows_, depth_, tile_rows_;
};

// Columns [first, first + kUnit) of a matrix; those past its end give numbers without meaning.
struct Unit {
  const Weights* weights;
  int64_t first;
};

// out[u][m][c], dense [units, rows, kUnit]: products of the packed rows with one or two units of
// equal depth. Two are faster than one after the other where rows are few.
void multiply(const PackedLayout& layout, const float* packed, std::span<const Unit> units,
              float* out);

// Row `row` of the matrix as float32 [depth].
void decode_row(const Weights& w, int64_t row, float* out);

}  // namespace pomona::kernels
