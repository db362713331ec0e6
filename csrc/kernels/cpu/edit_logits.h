// What a row does to its logits before a token is drawn from them: bias, penalties, masked tokens.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pomona::kernels {

struct LogitEdits {
  std::vector<int32_t> bias_ids;
  std::vector<float> bias;

  // Distinct tokens that the row has had, and how often its answer holds each.
  std::vector<int32_t> ids;
  std::vector<float> counts;
  // Place, among the tokens that are being computed, of one more token of the answer; -1: there is
  // none.
  int32_t unread = -1;
  float repetition = 1.0f;  // a positive logit is divided by it, another one multiplied
  float frequency = 0.0f;   // subtracted for each time that the answer holds the token
  float presence = 0.0f;    // subtracted where it holds it at all

  std::vector<int32_t> masked;  // become -inf
};

// Edits a row of logits: bias, then penalties, then the mask. Ids outside the row are passed over.
// unread: the tokens that `LogitEdits::unread` is a place of.
void edit_logits(const LogitEdits& edits, std::span<const int32_t> unread, std::span<float> logits);

}  // namespace pomona::kernels
