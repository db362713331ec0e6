#include "kernels/cpu/linear.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

// Multiply-adds below which sharing work out costs more than it saves.
constexpr int64_t kThreadedWork = 1 << 17;

char* at(void* base, Float type, int64_t index) {
  return static_cast<char*>(base) + index * size_of(type);
}
const char* at(const void* base, Float type, int64_t index) {
  return static_cast<const char*>(base) + index * size_of(type);
}

void run(bool threaded, int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (threaded) {
    ThreadPool::shared().run(count, grain, body);
  } else if (count > 0) {
    body(0, count);
  }
}

void pack(const PackedLayout& layout, int64_t tile, const void* x, Float type, float* packed) {
  const void* rows = at(x, type, layout.first_row(tile) * layout.depth());
  const int64_t count = layout.rows_of(tile) * layout.depth();
  float* to = packed + layout.offset_of(tile);
  if (layout.rows_of(tile) == 1) {
    kernels().convert.widen(type, rows, count, to);
    return;
  }
  if (type == Float::kFloat32) {
    pack_tile(layout, tile, static_cast<const float*>(x), layout.depth(), packed);
    return;
  }
  thread_local AlignedFloats wide;
  float* floats = wide.reserve(count);
  kernels().convert.widen(type, rows, count, floats);
  // pack_tile counts from the product's first row.
  pack_tile(layout, tile, floats - layout.first_row(tile) * layout.depth(), layout.depth(), packed);
}

// Stores columns of a finished unit [rows, kUnit].
struct Output {
  void* data;
  Float type;
  int64_t rows, columns;
  const float* bias;

  void store(const float* unit, int64_t first) const {
    const int64_t count = std::min(kUnit, columns - first);
    for (int64_t m = 0; m < rows; m++) {
      float row[kUnit];
      std::copy_n(unit + m * kUnit, count, row);
      if (bias != nullptr) {
        for (int64_t c = 0; c < count; c++) row[c] += bias[first + c];
      }
      kernels().convert.narrow(row, count, type, at(data, type, m * columns + first));
    }
  }
};

// At most kRowBlock rows.
void linear_block(const void* x, const Weights& weights, const Output& out) {
  const PackedLayout layout(out.rows, weights.depth);
  const bool threaded = out.rows * weights.rows * weights.depth >= kThreadedWork;
  thread_local AlignedFloats buffer;
  float* packed = buffer.reserve(layout.floats());
  run(threaded && out.rows > 1, layout.tiles(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile++) pack(layout, tile, x, out.type, packed);
  });
  const int64_t units = units_of(weights.rows);
  const int64_t grain = std::clamp<int64_t>(units / 32, 2, 8);
  run(threaded, units, grain, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats results;
    float* result = results.reserve(2 * out.rows * kUnit);
    for (int64_t u = begin; u < end; u += 2) {
      const Unit pair[] = {{&weights, u * kUnit}, {&weights, (u + 1) * kUnit}};
      const int64_t count = std::min<int64_t>(2, end - u);
      multiply(layout, packed, std::span(pair, count), result);
      for (int64_t i = 0; i < count; i++) {
        out.store(result + i * out.rows * kUnit, (u + i) * kUnit);
      }
    }
  });
}

}  // namespace

void linear(const void* x, Float type, int64_t rows, const Weights& weights, const float* bias,
            void* out) {
  for (int64_t first = 0; first < rows; first += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows - first);
    linear_block(at(x, type, first * weights.depth), weights,
                 {at(out, type, first * weights.rows), type, count, weights.rows, bias});
  }
}

void embed(const int32_t* ids, int64_t count, const Weights& weights, Float type, void* out) {
  const bool threaded = count * weights.depth >= kThreadedWork;
  run(threaded, count, 8, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats buffer;
    float* row = buffer.reserve(weights.depth);
    for (int64_t i = begin; i < end; i++) {
      if (ids[i] >= 0 && ids[i] < weights.rows) {
        decode_row(weights, ids[i], row);
      } else {
        std::fill_n(row, weights.depth, std::numeric_limits<float>::quiet_NaN());
      }
      kernels().convert.narrow(row, weights.depth, type, at(out, type, i * weights.depth));
    }
  });
}

}  // namespace pomona::kernels
