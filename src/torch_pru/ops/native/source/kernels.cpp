// Both passes for one instruction set: compiled once for each, with its flags and a name for its namespace.
#include "backward.h"
#include "forward.h"

#define JOIN(a, b) a##b
#define NAME(prefix, isa) JOIN(prefix, isa)

void NAME(forward_, KERNELS)(const Call& call) { KERNELS::forward(call); }
void NAME(backward_, KERNELS)(const Call& call) { KERNELS::backward(call); }
