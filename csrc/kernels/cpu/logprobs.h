// Log probabilities of tokens under rows of logits, and the likeliest tokens of each row.

#pragma once

#include <cstdint>

#include "kernels/cpu/choose.h"

namespace pomona::kernels {

struct Logprobs {
  float* own;           // [rows], of the given tokens
  int64_t top;          // at most the vocabulary
  int32_t* top_tokens;  // [rows, top], the likeliest first, of equal ones the smaller id
  float* top_logprobs;  // [rows, top]
};

// log_softmax of rows of float32. tokens: [rows]; one outside the vocabulary gives NaN. A row whose
// largest logit is not finite has NaN everywhere and 0 for its top tokens.
void logprobs(const Logits& logits, const int32_t* tokens, const Logprobs& out);

}  // namespace pomona::kernels
