// Stands in for the library of this name, which Debian 12 has not. rdma-unit-test uses it in messages only.

#pragma once

#include <string>

namespace magic_enum {

template <typename E>
std::string enum_name(E value) {
  return std::to_string(static_cast<long long>(value));
}

}  // namespace magic_enum
