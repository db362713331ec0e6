#include "kernels/cpu/edit_logits.h"

#include <limits>

namespace pomona::kernels {
namespace {

bool inside(int32_t id, std::span<const float> logits) {
  return id >= 0 && static_cast<size_t>(id) < logits.size();
}

float penalised(float logit, float count, const LogitEdits& e) {
  if (e.repetition != 1.0f) logit = logit > 0 ? logit / e.repetition : logit * e.repetition;
  logit -= e.frequency * count;
  return count > 0 ? logit - e.presence : logit;
}

}  // namespace

void edit_logits(const LogitEdits& e, std::span<const int32_t> unread, std::span<float> logits) {
  for (size_t i = 0; i < e.bias_ids.size(); i++) {
    if (inside(e.bias_ids[i], logits)) logits[e.bias_ids[i]] += e.bias[i];
  }
  int32_t newest = e.unread < 0 ? -1 : unread[e.unread];
  for (size_t i = 0; i < e.ids.size(); i++) {
    const int32_t id = e.ids[i];
    const bool again = id == newest;
    if (again) newest = -1;
    if (inside(id, logits)) logits[id] = penalised(logits[id], e.counts[i] + (again ? 1 : 0), e);
  }
  if (inside(newest, logits)) logits[newest] = penalised(logits[newest], 1, e);
  for (const int32_t id : e.masked) {
    if (inside(id, logits)) logits[id] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace pomona::kernels
