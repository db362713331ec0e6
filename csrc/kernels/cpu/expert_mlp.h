// Mixtures of experts: each row goes through a few of many gated MLPs.
//
// Rows are grouped by expert, so that an expert's weights are read once for all of its rows. A
// row's bits depend on the row alone: its experts' results are added in order of their ids.
//
// Thread-safety: as ThreadPool::run. Ownership: nothing is kept after a call returns but buffers of
// the calling thread.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/gated_mlp.h"
#include "kernels/cpu/rows.h"

namespace pomona::kernels {

// How logits become weights.
enum class Scoring {
  kSoftmax,      // over all experts
  kTopkSoftmax,  // over the chosen ones
  kSigmoid,
};

struct ExpertMlp {
  Linear router;
  std::span<const GatedMlp> experts;
  int64_t top_k;  // greatest logits; of equal ones that with the lower id
  Scoring scoring;
  bool normalise;             // weights of the chosen are divided by their sum
  const GatedMlp* shared;     // for every row, or null
  const Linear* shared_gate;  // [1, hidden]: its sigmoid scales `shared`; or null
};

// Dense x [T, hidden] to out [T, hidden]: residual + scale * after(mlp(before(x))), where either
// norm and residual.data may be null.
void expert_mlp(const ExpertMlp& mlp, const Rows& x, const Norm* before, const Norm* after,
                float scale, const Rows& residual, const Target& out);

// Row i of x through the experts indices[i, k]: out [T * k, hidden]. An index without an expert
// gives NaN.
void switch_glu(std::span<const GatedMlp> experts, const Rows& x, const int32_t* indices, int64_t k,
                const Target& out);

}  // namespace pomona::kernels
