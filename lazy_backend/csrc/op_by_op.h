// A window as windows of one op each, which have plans that come again where the window itself never does.
#pragma once

#include "executor.h"

namespace lazy {

std::vector<Job> op_by_op(Job job);

}  // namespace lazy
