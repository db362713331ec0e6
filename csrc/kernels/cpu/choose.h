// Picks one token for each row of logits.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

// How one row's tokens are drawn. A temperature below 1e-5 is greedy: no token but the likeliest
// has a chance in float32 then.
struct DrawRule {
  float temperature = 0.0f;
  int64_t top_k = 0;  // 0: all tokens
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;

  bool greedy() const { return temperature < 1e-5f || top_k == 1; }
};

// Rows of logits without gaps.
struct Logits {
  const void* data;
  Float type;
  int64_t rows, vocab;
};

// Stands for a token where the largest logit is not a finite number.
constexpr int32_t kNoToken = -1;

// tokens[r]: drawn by rules[r] with the random numbers of its seed and indices[r], the number of
// tokens drawn before. It depends on its own row alone, whatever the number of rows or threads.
// Of equal logits the greedy rule takes the first; top_k and top_p keep every token that ties with
// the last one kept.
void choose(const Logits& logits, std::span<const DrawRule> rules,
            std::span<const uint64_t> indices, int32_t* tokens);

}  // namespace pomona::kernels
