// The kernels that are compiled once per instruction set, chosen when the first is needed.

#pragma once

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/choose_tile.h"
#include "kernels/cpu/convert_tile.h"
#include "kernels/cpu/elementwise_tile.h"
#include "kernels/cpu/matmul_tile.h"

namespace pomona::kernels {

struct Kernels {
  const char* name;  // of the instruction set
  AttendTile* attend_tile;
  ChooseKernels choose;
  ConvertKernels convert;
  ElementwiseKernels elementwise;
  MatmulKernels matmul;
};

// The best set this machine has; POMONA_CPU_VARIANT forces one. Throws std::runtime_error when the
// forced one is unknown or this machine lacks it.
const Kernels& kernels();

}  // namespace pomona::kernels
