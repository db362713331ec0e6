#include "ops/stamp.h"

#include <stdexcept>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "ops/cpu_stream.h"

namespace pomona::ops {

namespace mx = mlx::core;

mx::array stamp(const mx::array& x, std::shared_ptr<Moment> moment) {
  return mx::array(x.shape(), x.dtype(), std::make_shared<Stamp>(cpu_stream(), std::move(moment)),
                   {x});
}

std::vector<mx::Shape> Stamp::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

void Stamp::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  outputs[0].copy_shared_buffer(inputs[0]);
  mx::cpu::get_command_encoder(stream()).dispatch([moment = moment_] { moment->set(); });
}

void Stamp::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("stamp runs on the CPU only");
}

}  // namespace pomona::ops
