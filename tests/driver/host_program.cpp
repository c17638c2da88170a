// A host of the contract as csrc has it: loads the plug-in named on the command line and moves bytes through it.
// Prints one line; for tests/driver/test_versions.py.
#include <cstdio>
#include <cstring>

#include "csrc/driver.h"

int main(int, char** argv) {
  try {
    lazy::use_driver(std::string(argv[1]));
    lazy::Device& device = lazy::device(0);
    const char sent[] = "seventeen bytes..";
    char got[sizeof(sent)] = "";
    lazy_mem mem = device.alloc(sizeof(sent));
    device.copy_h2d(mem, 0, sent, sizeof(sent), true);
    device.copy_d2h(got, mem, 0, sizeof(got), true);
    device.free(mem);
#ifdef LAZY_HAS_LATER
    const bool later = device.api->later || device.props.later;
#else
    const bool later = false;
#endif
    std::printf("host %u.%u: level %u, bytes %s, later entries %s\n", LAZY_DRIVER_MAJOR, LAZY_DRIVER_MINOR,
                device.props.level, std::memcmp(sent, got, sizeof(sent)) ? "differ" : "agree",
                later ? "present" : "absent");
  } catch (const lazy::DriverError& error) {
    std::printf("refused: %s\n", error.what());
  }
}
