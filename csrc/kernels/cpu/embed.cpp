#include "kernels/cpu/embed.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {

void embed(const int32_t* ids, int64_t count, const Weights& weights, const Target& out) {
  share(count * weights.depth * kElementWork, count, 8, [&](int64_t begin, int64_t end) {
    thread_local AlignedFloats buffer;
    float* row = buffer.reserve(weights.depth);
    for (int64_t i = begin; i < end; i++) {
      if (ids[i] >= 0 && ids[i] < weights.rows) {
        decode_row(weights, ids[i], row);
      } else {
        std::fill_n(row, weights.depth, std::numeric_limits<float>::quiet_NaN());
      }
      kernels().convert.narrow(row, weights.depth, out.type, out.at(i));
    }
  });
}

}  // namespace pomona::kernels
