#!/bin/sh
# Checks for Java 17 or later and Maven, because the tests run Apache Kafka's own tools. Installs them with apt-get if
# it runs as root.
set -u

java_is_fit() {
    found=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
    [ -n "$found" ] && [ "$found" -ge 17 ]
}

missing=""
java_is_fit || missing="openjdk-17-jdk-headless"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
[ -z "$missing" ] && exit 0

if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "installing$(printf ' %s' $missing)"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
fi

if ! java_is_fit; then
    echo "missing: Java 17 or later. Install it, e.g. 'sudo apt install openjdk-17-jdk-headless' or 'brew install openjdk@17'" >&2
    exit 1
fi
if ! command -v mvn >/dev/null 2>&1; then
    echo "missing: Maven (mvn). Install it, e.g. 'sudo apt install maven' or 'brew install maven'" >&2
    exit 1
fi
