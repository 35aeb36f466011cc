#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cmocka 1.1.5 (Debian 12's libcmocka-dev 1.1.5-2.1): assert_float_equal(value, expected, epsilon).
#
# Expected: a value of NaN or infinity is not equal to 0, so that the assertion fails, as it does for 1.
# Real: the assertion passes. Both are "equal" to every number, with any epsilon. A test of numerical code that looks for NaN
# with it cannot fail. Compare with == and report the two numbers yourself.
#
# Output seen (Debian 12, gcc 12.2, 2026-11-30):
#     one: fails
#     nan: passes
#     infinity: passes
#
# Needs apt-get, dpkg-deb and a C compiler; installs nothing: the package is unpacked in a temporary folder. Exit status 0 while
# cmocka behaves so, 1 when it does not any more, 77 where the package cannot be had.
set -u
folder=$(mktemp -d) || exit 77
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 77
apt-get download libcmocka-dev=1.1.5-2.1 libcmocka0=1.1.5-2.1 >apt.log 2>&1 || { tail -n 1 apt.log && exit 77; }
for package in *.deb; do dpkg-deb -x "$package" root || exit 77; done
library=$(find root -name 'libcmocka.so.0*' | head -n 1)
cat >compare.c <<'END'
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

static float value;
static void is_zero(void **state) {
    (void)state;
    assert_float_equal(value, 0.0f, 0.0f);
}
int main(int count, char **words) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_zero)};
    value = count > 1 ? strtof(words[1], NULL) : 0.0f;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
END
cc -I root/usr/include compare.c "$library" -o compare || exit 77
for name in one nan infinity; do
    [ $name = one ] && number=1 || number=$name
    LD_LIBRARY_PATH=$(dirname "$library") ./compare $number >run.log 2>&1 && echo "$name: passes" || echo "$name: fails"
done | tee seen
printf 'one: fails\nnan: passes\ninfinity: passes\n' | cmp -s - seen || { echo "cmocka behaves otherwise now" && exit 1; }
