#include "ops/row_primitive.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cpu/variant.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/utils.h"
#include "ops/dense_input.h"
#include "ops/slab.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

class RowPrimitive : public mx::Primitive {
 public:
  RowPrimitive(mx::Stream stream, const char* name, mx::Shape shape, RowBody body)
      : Primitive(stream),
        name_(name),
        shape_(std::move(shape)),
        body_(std::make_shared<const RowBody>(std::move(body))) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name_) + " has no GPU kernel: use the CPU device");
  }
  const char* name() const override { return name_; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override { return {shape_}; }

 private:
  const char* name_;
  mx::Shape shape_;
  std::shared_ptr<const RowBody> body_;
};

int64_t last(const mx::array& x) { return x.ndim() == 0 ? 1 : x.shape(-1); }

void RowPrimitive::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  std::vector<mx::array> views;
  for (const mx::array& x : inputs) views.push_back(mx::array::unsafe_weak_copy(x));
  mx::cpu::get_command_encoder(stream()).dispatch([views = std::move(views),
                                                   out = mx::array::unsafe_weak_copy(outputs[0]),
                                                   body = body_]() mutable {
    const mx::array& x = views[0];
    const kernels::Float type = float_of(x.dtype(), "x");
    // Without rows the body still runs: it may have blocks of a slab to copy.
    const int64_t width = last(x), size = static_cast<int64_t>(x.size());
    const int64_t count = size == 0 ? 0 : size / width;
    std::vector<char> buffer;
    (*body)(views, {dense_input(x, buffer), type, count, width},
            {out.data<void>(), type, last(out)});
  });
}

}  // namespace

mx::array row_primitive(const char* name, std::vector<mx::array> inputs, mx::Shape shape,
                        RowBody body) {
  kernels::kernels();  // a wrong choice must raise here, not later on the stream's thread
  const mx::Dtype dtype = inputs[0].dtype();
  float_of(dtype, (std::string(name) + ": x").c_str());
  auto primitive = std::make_shared<RowPrimitive>(mx::to_stream({}), name, shape, std::move(body));
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

}  // namespace pomona::ops
