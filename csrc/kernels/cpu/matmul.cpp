#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

int64_t even_tile_rows(int64_t rows, int64_t most) {
  if (rows == 0) return 0;
  const int64_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

}  // namespace

PackedLayout::PackedLayout(int64_t rows, int64_t depth)
    : rows_(rows), depth_(depth), tile_rows_(even_tile_rows(rows, kernels().matmul.tile_rows)) {}

void multiply(const PackedLayout& layout, const float* packed, std::span<const Unit> units,
              float* out) {
  alignas(64) thread_local float scratch[kMatmulScratch];
  kernels().matmul.multiply(layout, packed, units.data(), static_cast<int64_t>(units.size()),
                            scratch, out);
}

void decode_row(const Weights& w, int64_t row, float* out) {
  kernels().matmul.decode(w, row, 0, w.depth, out);
}

}  // namespace pomona::kernels
