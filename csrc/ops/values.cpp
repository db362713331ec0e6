#include "ops/values.h"

#include "mlx/ops.h"
#include "mlx/transforms.h"

namespace pomona::ops {

namespace mx = mlx::core;

std::vector<float> values_of(const mx::array& x) {
  mx::array floats = mx::contiguous(mx::astype(x, mx::float32));
  mx::eval(floats);
  return {floats.data<float>(), floats.data<float>() + floats.size()};
}

}  // namespace pomona::ops
