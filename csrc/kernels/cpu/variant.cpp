#include "kernels/cpu/variant.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pomona::kernels {
namespace {

struct Variant {
  bool supported;
  Kernels kernels;
};

#define POMONA_KERNELS(name)    \
  {#name,                       \
   name::attend_tile,           \
   name::choose_kernels(),      \
   name::convert_kernels(),     \
   name::elementwise_kernels(), \
   name::matmul_kernels()}

Kernels choose() {
  // Best first.
  const Variant variants[] = {
#if defined(__x86_64__)
      {__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
       POMONA_KERNELS(avx512)},
      {__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), POMONA_KERNELS(avx2)},
      {true, POMONA_KERNELS(generic)},
#elif defined(__aarch64__)
      {true, POMONA_KERNELS(neon)},
#else
      {true, POMONA_KERNELS(generic)},
#endif
  };
  const char* forced = std::getenv("POMONA_CPU_VARIANT");
  if (forced == nullptr || *forced == '\0') {
    return std::ranges::find_if(variants, &Variant::supported)->kernels;
  }
  const auto named = [&](const Variant& v) { return v.kernels.name == std::string_view(forced); };
  const auto found = std::ranges::find_if(variants, named);
  if (found == std::end(variants)) {
    std::string message = "POMONA_CPU_VARIANT=" + std::string(forced) + " is not one of";
    for (const Variant& v : variants) message += std::string(" ") + v.kernels.name;
    throw std::runtime_error(message);
  }
  if (!found->supported) {
    throw std::runtime_error("POMONA_CPU_VARIANT=" + std::string(forced) +
                             ": this machine lacks these instructions");
  }
  return found->kernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

}  // namespace pomona::kernels
