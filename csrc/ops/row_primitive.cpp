#include "ops/row_primitive.h"

#include <string>
#include <utility>

#include "ops/cpu_node.h"
#include "ops/dense_input.h"
#include "ops/slab.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

int64_t last(const mx::array& x) { return x.ndim() == 0 ? 1 : x.shape(-1); }

}  // namespace

mx::array row_primitive(const char* name, std::vector<mx::array> inputs, mx::Shape shape,
                        RowBody body) {
  const mx::Dtype dtype = inputs[0].dtype();
  const kernels::Float type = float_of(dtype, (std::string(name) + ": x").c_str());
  const auto work = [type, body = std::move(body)](const std::vector<mx::array>& views,
                                                   mx::array& out) {
    const mx::array& x = views[0];
    // Without rows the body still runs: it may have blocks of a slab to copy.
    const int64_t width = last(x), size = static_cast<int64_t>(x.size());
    const int64_t count = size == 0 ? 0 : size / width;
    std::vector<char> buffer;
    body(views, {dense_input(x, buffer), type, count, width}, {out.data<void>(), type, last(out)});
  };
  return make_node({.name = name,
                    .inputs = std::move(inputs),
                    .shape = std::move(shape),
                    .dtype = dtype,
                    .work = work});
}

}  // namespace pomona::ops
