// The one form of our primitives: work over memory, done by a CPU stream, with a single output.

#pragma once

#include <functional>
#include <vector>

#include "mlx/array.h"
#include "mlx/utils.h"

namespace pomona::ops {

// Row after row, in the order of the shape.
void allocate_dense(mlx::core::array& out);

// What a node is made of. It asks MLX for no donation and has one output, so an input that `work`
// writes in place, as it does a slab, is not copied, whatever steps are in flight.
struct CpuNode {
  const char* name;
  std::vector<mlx::core::array> inputs;
  mlx::core::Shape shape;
  mlx::core::Dtype dtype;

  // Gets the inputs and the output as they lie in memory, on the stream's thread. It runs after the
  // call that made the node has returned, so it must hold shares of all that it needs.
  std::function<void(const std::vector<mlx::core::array>& inputs, mlx::core::array& out)> work;

  mlx::core::Stream stream = mlx::core::to_stream({});
  void (*allocate)(mlx::core::array& out) = allocate_dense;
};

// The node's output, lazily. Evaluated on a GPU stream it throws std::runtime_error.
mlx::core::array make_node(CpuNode node);

}  // namespace pomona::ops
