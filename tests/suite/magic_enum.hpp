// A substitute for the library magic_enum, which Debian 12 lacks. rdma-unit-test uses it only in messages.

#pragma once

#include <string>

namespace magic_enum {

template <typename E>
std::string enum_name(E value) {
  return std::to_string(static_cast<long long>(value));
}

}  // namespace magic_enum
