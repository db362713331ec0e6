#include "kernels/cpu/rows.h"

#include <cmath>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

void share_rows(const Rows& rows, FunctionRef<void(int64_t, int64_t)> body) {
  share(rows.count * rows.width * kElementWork, rows.count, 8, body);
}

}  // namespace

void load_row(const Rows& rows, int64_t row, const Norm* norm, float* to) {
  if (norm != nullptr) {
    kernels().elementwise.rms_norm(rows.type, rows.row(row), rows.width, norm->weight, norm->eps,
                                   to);
  } else {
    kernels().convert.widen(rows.type, rows.row(row), rows.width, to);
  }
}

void rms_norm(const Rows& x, const Norm& norm, const Target& out) {
  share_rows(x, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats buffer;
    float* row = buffer.reserve(x.width);
    for (int64_t r = begin; r < end; r++) {
      load_row(x, r, &norm, row);
      kernels().convert.narrow(row, x.width, out.type, out.at(r));
    }
  });
}

void load_rows(const Rows& x, const Norm* norm, float* to) {
  share_rows(x, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) load_row(x, r, norm, to + r * x.width);
  });
}

void add_rows(float* y, int64_t count, const Norm* norm, float scale, const Rows& residual,
              const Target& out) {
  const int64_t width = out.width;
  share_rows(rows_of(y, count, width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      float* row = y + r * width;
      if (norm != nullptr) {
        kernels().elementwise.rms_norm(Float::kFloat32, row, width, norm->weight, norm->eps, row);
      }
      kernels().elementwise.add({
          .rows = 1,
          .columns = width,
          .x = row,
          .x_stride = width,
          .bias = nullptr,
          .scale = scale,
          .residual = residual.data == nullptr ? nullptr : residual.row(r),
          .residual_type = residual.type,
          .residual_stride = width,
          .out = out.at(r),
          .out_type = out.type,
          .out_stride = width,
      });
    }
  });
}

void fill_angles(std::span<const int32_t> positions, std::span<const float> frequencies,
                 float* angles) {
  const int64_t half = static_cast<int64_t>(frequencies.size());
  for (const int32_t position : positions) {
    for (int64_t i = 0; i < half; i++) {
      const float angle = static_cast<float>(position) * frequencies[i];
      angles[i] = std::cos(angle);
      angles[half + i] = std::sin(angle);
    }
    angles += 2 * half;
  }
}

void turn_heads(const Rows& x, int64_t heads, int64_t length, const Turning& turning,
                const float* angles, const Target& out) {
  share_rows(x, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats buffer;
    float* head = buffer.reserve(x.width);
    for (int64_t r = begin; r < end; r++) {
      const int64_t position = r / (heads * length) * length + r % length;
      kernels().convert.widen(x.type, x.row(r), x.width, head);
      kernels().elementwise.turn(head, angles + position * 2 * turning.half, turning.half,
                                 turning.traditional, turning.scale);
      kernels().convert.narrow(head, x.width, out.type, out.at(r));
    }
  });
}

}  // namespace pomona::kernels
