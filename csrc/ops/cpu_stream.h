// Where nodes run that have only a CPU form, whatever the model runs on: memory is shared, and MLX
// keeps streams in step.

#pragma once

#include "mlx/stream.h"
#include "mlx/utils.h"

namespace pomona::ops {

// The stream in use if it is a CPU's, else this thread's CPU stream.
inline mlx::core::Stream cpu_stream() {
  const mlx::core::Stream current = mlx::core::to_stream({});
  return current.device == mlx::core::Device::cpu
             ? current
             : mlx::core::default_stream(mlx::core::Device::cpu);
}

}  // namespace pomona::ops
