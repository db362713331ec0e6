// Dense rows of activations, and what is done to each of them for itself.
//
// Thread-safety: as ThreadPool::run. Ownership: nothing is kept after a call returns.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/float_type.h"
#include "kernels/cpu/share.h"

namespace pomona::kernels {

// Dense rows [count, width].
struct Rows {
  const void* data;
  Float type;
  int64_t count, width;

  const void* row(int64_t i) const {
    return static_cast<const char*>(data) + i * width * size_of(type);
  }
  Rows part(int64_t first, int64_t n) const { return {row(first), type, n, width}; }
};

// The same, to be written.
struct Target {
  void* data;
  Float type;
  int64_t width;

  void* at(int64_t row, int64_t column = 0) const {
    return static_cast<char*>(data) + (row * width + column) * size_of(type);
  }
  Target from(int64_t row) const { return {at(row), type, width}; }
};

inline Rows rows_of(const float* data, int64_t count, int64_t width) {
  return {data, Float::kFloat32, count, width};
}
inline Rows no_rows() { return {nullptr, Float::kFloat32, 0, 0}; }
inline Rows part_of(const Rows& rows, int64_t first, int64_t count) {
  return rows.data == nullptr ? no_rows() : rows.part(first, count);
}
inline Target target_of(float* data, int64_t width) { return {data, Float::kFloat32, width}; }

// Root mean square norm; weight null: ones.
struct Norm {
  const float* weight = nullptr;
  float eps = 0.0f;
};

// How a head is turned by the angles of its position.
struct Turning {
  int64_t half = 0;  // pairs that are turned; 0: none
  bool traditional = false;
  float scale = 1.0f;
};

// A value that is normed, turned or stored costs about as much as this many multiply-adds.
constexpr int64_t kElementWork = 16;

void rms_norm(const Rows& x, const Norm& norm, const Target& out);

// A row as float32, normed where `norm` is not null.
void load_row(const Rows& rows, int64_t row, const Norm* norm, float* to);

// Rows as float32 [count, width], normed where `norm` is not null.
void load_rows(const Rows& x, const Norm* norm, float* to);

// out = residual + scale * norm(y), where norm may be null and residual no_rows(); y [count,
// out.width] is overwritten.
void add_rows(float* y, int64_t count, const Norm* norm, float scale, const Rows& residual,
              const Target& out);

// cos and sin of positions times frequencies, [positions, 2 * frequencies]: cosines, then sines.
void fill_angles(std::span<const int32_t> positions, std::span<const float> frequencies,
                 float* angles);

// Heads x [B, heads, length, dim] turned by angles [B, length, 2 * half].
void turn_heads(const Rows& x, int64_t heads, int64_t length, const Turning& turning,
                const float* angles, const Target& out);

}  // namespace pomona::kernels
