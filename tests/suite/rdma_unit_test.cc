// The main program of Google's rdma-unit-test, whose sources are not part of this project. It replaces their
// internal/introspection_registrar.cc, public/introspection.cc and unit/gunit_main.cc, which contain the
// expected behaviour of each vendor's adapters and the tests to skip. Here every device is expected to do
// all that the specification says.

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "public/flags.h"
#include "public/introspection.h"
#include "public/verbs_util.h"

namespace rdma_unit_test {
namespace {

class Specification : public NicIntrospection {
 public:
  using NicIntrospection::NicIntrospection;
  bool SupportsReRegMr() const override { return true; }
  // A request that is posted before RTS is an immediate error.
  bool SilentlyDropSendWrWhenResetInitRtr() const override { return false; }
};

const NicIntrospection* Open() {
  std::string name = absl::GetFlag(FLAGS_device_name);
  ibv_context* context = verbs_util::OpenUntrackedDevice(name).value();
  ibv_device_attr attr;
  CHECK_EQ(ibv_query_device(context, &attr), 0);
  const auto* device = new Specification(context->device->name, attr);
  CHECK_EQ(ibv_close_device(context), 0);
  return device;
}

}  // namespace

const NicIntrospection& Introspection() {
  static const NicIntrospection* device = Open();
  return *device;
}

std::optional<std::string> NicIntrospection::KnownIssue() const { return std::nullopt; }

bool NicIntrospection::HasCounter(HardwareCounter) const { return false; }

absl::StatusOr<uint64_t> NicIntrospection::GetCounterValue(HardwareCounter) const {
  return absl::NotFoundError("no counter is used");
}

NicIntrospection::CounterSnapshot NicIntrospection::GetCounterSnapshot() const { return {}; }

std::string NicIntrospection::DumpHardwareCounters() const { return ""; }

}  // namespace rdma_unit_test

int main(int argc, char* argv[]) {
  testing::InitGoogleTest(&argc, argv);
  google::InitGoogleLogging(argv[0]);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
