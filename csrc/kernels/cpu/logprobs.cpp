#include "kernels/cpu/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/choose_tile.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A thread's buffers, reused.
struct Scratch {
  std::vector<float> weights, sums;
  std::vector<int32_t> ids;
};

// What turns a logit into its logarithm of a probability.
struct Normaliser {
  float peak;
  float log_total;  // of the exponentials relative to the peak

  // The peak goes first: it may be large, and the difference is exact for what is near it.
  float operator()(float logit) const { return logit - peak - log_total; }
};

Normaliser normaliser(const float* logits, int64_t vocab, Scratch& scratch) {
  const ChooseKernels& kernel = kernels().choose;
  const float peak = kernel.find_peak(logits, Float::kFloat32, vocab).value;
  if (!std::isfinite(peak)) return {peak, kNan};
  const int64_t blocks = (vocab + kDrawBlock - 1) / kDrawBlock;
  scratch.weights.resize(blocks * kDrawBlock);
  scratch.sums.resize(blocks);
  kernel.weigh(logits, Float::kFloat32, vocab, peak, kLog2E, scratch.weights.data(),
               scratch.sums.data());
  const double total = std::accumulate(scratch.sums.begin(), scratch.sums.end(), 0.0);
  return {peak, static_cast<float>(std::log(total))};
}

// The ids of the largest logits, in falling order.
void find_top(const float* logits, int64_t vocab, int64_t top, int32_t* tokens, Scratch& scratch) {
  scratch.ids.resize(vocab);
  std::iota(scratch.ids.begin(), scratch.ids.end(), 0);
  std::partial_sort_copy(
      scratch.ids.begin(), scratch.ids.end(), tokens, tokens + top,
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
}

}  // namespace

void logprobs(const Logits& logits, const int32_t* tokens, const Logprobs& out) {
  const int64_t vocab = logits.vocab, top = out.top;
  const auto do_some = [&](int64_t begin, int64_t end) {
    thread_local Scratch scratch;
    for (int64_t r = begin; r < end; r++) {
      const float* row = static_cast<const float*>(logits.data) + r * vocab;
      const Normaliser logprob = normaliser(row, vocab, scratch);
      const bool inside = tokens[r] >= 0 && tokens[r] < vocab;
      out.own[r] = inside ? logprob(row[tokens[r]]) : kNan;
      int32_t* ids = out.top_tokens + r * top;
      std::fill_n(ids, top, 0);
      if (top > 0 && !std::isnan(logprob.log_total)) find_top(row, vocab, top, ids, scratch);
      for (int64_t i = 0; i < top; i++) out.top_logprobs[r * top + i] = logprob(row[ids[i]]);
    }
  };
  share(logits.rows * vocab, logits.rows, 1, do_some);
}

}  // namespace pomona::kernels
