#include "ops/rope.h"

#include <numeric>
#include <utility>

#include "mlx/utils.h"
#include "ops/dense_input.h"
#include "ops/require.h"
#include "ops/row_primitive.h"
#include "ops/values.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

// offset[b] + l of every b and l; offsets of one value are that of every b.
std::vector<int32_t> positions(std::span<const int32_t> offsets, int batch, int length) {
  std::vector<int32_t> result(static_cast<size_t>(batch) * length);
  for (int b = 0; b < batch; b++) {
    const auto row = result.begin() + static_cast<int64_t>(b) * length;
    std::iota(row, row + length, offsets[offsets.size() == 1 ? 0 : b]);
  }
  return result;
}

}  // namespace

Rope::Rope(const mx::array& frequencies, bool traditional, float scale)
    : traditional_(traditional), scale_(scale) {
  constexpr Require require{"Rope"};
  require(frequencies.ndim() == 1 && frequencies.size() > 0,
          "frequencies must be [pairs], got shape ", frequencies.shape());
  frequencies_ = values_of(frequencies);
}

mx::array rope(const mx::array& x, std::shared_ptr<const Rope> rope,
               const std::variant<int, mx::array>& offset) {
  constexpr Require require{"rope"};
  require(x.ndim() == 4, "x must be [B, H, L, D], got shape ", x.shape());
  require(x.shape(3) >= rope->dims(), "x has heads of width ", x.shape(3), ", the rope turns ",
          rope->dims());
  const int batch = x.shape(0), heads = x.shape(1), length = x.shape(2);
  std::vector<mx::array> inputs{x};
  int first = 0;
  if (const auto* array = std::get_if<mx::array>(&offset)) {
    require(
        array->dtype() == mx::int32 && (array->size() == 1 || array->shape() == mx::Shape{batch}),
        "offset must be int32, one or [", batch, "], got ", array->dtype(), " of shape ",
        array->shape());
    inputs.push_back(*array);
  } else {
    first = std::get<int>(offset);
  }
  return row_primitive(
      "rope", std::move(inputs), x.shape(),
      [=, rope = std::move(rope)](const std::vector<mx::array>& views, const kernels::Rows& rows,
                                  const kernels::Target& out) {
        std::vector<char> buffer;
        std::span<const int32_t> offsets(&first, 1);
        if (views.size() > 1) {
          const void* data = dense_input(views[1], buffer);
          offsets = {static_cast<const int32_t*>(data), views[1].size()};
        }
        std::vector<float> angles(static_cast<size_t>(batch) * length * rope->dims());
        kernels::fill_angles(positions(offsets, batch, length), rope->frequencies(), angles.data());
        kernels::turn_heads(rows, heads, length, rope->turning(), angles.data(), out);
      });
}

}  // namespace pomona::ops
