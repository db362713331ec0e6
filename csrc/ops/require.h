// Argument checks that the primitives share.

#pragma once

#include <sstream>
#include <stdexcept>

#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// Throws std::invalid_argument "op: parts..." when a condition does not hold.
struct Require {
  const char* op;

  template <typename... Parts>
  void operator()(bool holds, const Parts&... parts) const {
    if (holds) return;
    std::ostringstream message;
    message << op << ": ";
    (message << ... << parts);
    throw std::invalid_argument(message.str());
  }

  void table_fits(const StepTable& table, const Slab& slab) const {
    (*this)(table.block_size() == slab.block_size(), "the table's blocks hold ", table.block_size(),
            " tokens, the slab's ", slab.block_size());
    (*this)(table.blocks_needed() <= slab.blocks(), "the table names block ",
            table.blocks_needed() - 1, ", the slab has ", slab.blocks(), " blocks");
  }
};

}  // namespace pomona::ops
