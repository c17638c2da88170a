// torch.accelerator.Graph of the device.
#pragma once

namespace lazy {

void register_graphs();  // after the device has its name, by which torch finds them

}  // namespace lazy
