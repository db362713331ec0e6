// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.

#include "kernels/cpu/convert_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

template <typename From, typename To>
void convert(const void* source, int64_t count, void* target) {
  const From* from = static_cast<const From*>(source);
  To* to = static_cast<To*>(target);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_part(to + i, load_part(from + i, count - i), count - i);
}

void widen(Float type, const void* from, int64_t count, float* to) {
  with_type(type, [&]<typename T>(T) { convert<T, float>(from, count, to); });
}

void narrow(const float* from, int64_t count, Float type, void* to) {
  with_type(type, [&]<typename T>(T) { convert<float, T>(from, count, to); });
}

}  // namespace

namespace POMONA_VARIANT {

ConvertKernels convert_kernels() { return {widen, narrow}; }

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
