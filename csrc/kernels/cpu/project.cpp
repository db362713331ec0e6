#include "kernels/cpu/project.h"

#include <algorithm>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

void pack_one(const Rows& rows, const Norm* norm, const PackedLayout& layout, int64_t tile,
              float* packed) {
  const int64_t first = layout.first_row(tile), count = layout.rows_of(tile);
  float* to = packed + layout.offset_of(tile);
  if (count == 1) return load_row(rows, first, norm, to);
  thread_local AlignedFloats buffer;
  float* loaded = buffer.reserve(count * rows.width);
  for (int64_t r = 0; r < count; r++) load_row(rows, first + r, norm, loaded + r * rows.width);
  kernels().elementwise.pack(loaded, rows.width, count, rows.width, to);
}

}  // namespace

int64_t rows_per_block(int64_t rows) {
  const int64_t blocks = std::max<int64_t>(1, (rows + kRowBlock - 1) / kRowBlock);
  const int64_t tile = kernels().matmul.tile_rows, even = (rows + blocks - 1) / blocks;
  return std::min((even + tile - 1) / tile * tile, kRowBlock);
}

void pack(const Rows& rows, const Norm* norm, const PackedLayout& layout, float* packed) {
  share(layout.floats() * kElementWork, layout.tiles(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile++) pack_one(rows, norm, layout, tile, packed);
  });
}

void share_units(int64_t work, int64_t units, int64_t step,
                 FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t threads = ThreadPool::shared().threads(), least = (units + step - 1) / step;
  const int64_t pieces = std::min(units, (least + threads - 1) / threads * threads);
  share(work, pieces, 1,
        [&](int64_t begin, int64_t end) { body(begin * units / pieces, end * units / pieces); });
}

void project(const PackedLayout& layout, const float* packed, std::span<const Linear> matrices,
             Finish finish) {
  int64_t units = 0, columns = 0;
  for (const Linear& m : matrices) {
    units += units_of(m.weights.rows);
    columns += m.weights.rows;
  }
  const int64_t rows = layout.rows(), step = units_at_once(rows);
  share_units(rows * columns * layout.depth(), units, step, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats buffer;
    float* sums = buffer.reserve(2 * rows * kUnit);
    int64_t first = 0;  // unit of the current matrix
    for (size_t i = 0; i < matrices.size() && first < end; i++) {
      const Weights& w = matrices[i].weights;
      const int64_t past = first + units_of(w.rows);
      for (int64_t u = std::max(begin, first), n; u < std::min(end, past); u += n) {
        n = std::min({step, end - u, past - u});
        const int64_t column = (u - first) * kUnit;
        const Unit pair[] = {{&w, column}, {&w, column + kUnit}};
        multiply(layout, packed, std::span(pair, n), sums);
        for (int64_t k = 0; k < n; k++) {
          const int64_t c = column + k * kUnit;
          finish(static_cast<int64_t>(i), c, std::min(kUnit, w.rows - c), sums + k * rows * kUnit);
        }
      }
      first = past;
    }
  });
}

void project_rows(const Linear& matrix, const Rows& x, float scale, const Rows& residual,
                  const Target& out) {
  thread_local AlignedFloats buffer;
  for_blocks(x.count, [&](int64_t first, int64_t count) {
    const PackedLayout layout(count, x.width);
    float* packed = buffer.reserve(layout.floats());
    pack(x.part(first, count), nullptr, layout, packed);
    const Epilogue epilogue{matrix.bias, scale, part_of(residual, first, count), out.from(first)};
    project(layout, packed, {&matrix, 1},
            [&](int64_t, int64_t column, int64_t columns, const float* sums) {
              epilogue(column, columns, sums, count);
            });
  });
}

void Epilogue::operator()(int64_t first, int64_t columns, const float* sums, int64_t rows) const {
  const void* from = nullptr;
  if (residual.data != nullptr) {
    from = static_cast<const char*>(residual.data) + first * size_of(residual.type);
  }
  kernels().elementwise.add({
      .rows = rows,
      .columns = columns,
      .x = sums,
      .x_stride = kUnit,
      .bias = bias == nullptr ? nullptr : bias + first,
      .scale = scale,
      .residual = from,
      .residual_type = residual.type,
      .residual_stride = residual.width,
      .out = out.at(0, first),
      .out_type = out.type,
      .out_stride = out.width,
  });
}

}  // namespace pomona::kernels
