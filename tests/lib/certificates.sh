# Certificates of external services, sourced. A CA is NAME.pem and NAME.key in a directory, and so
# is each certificate.
authority() { # directory, names...
  local name
  for name in "${@:2}"; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1/$name.key" \
      -out "$1/$name.pem" -days 2 -subj "/CN=$name of tests" 2>/dev/null || return 1
  done
}
signed() { # directory, name, CA, subject alternative name
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1/$2.key" \
    -out "$1/$2.csr" -subj "/CN=$2" 2>/dev/null &&
    openssl x509 -req -in "$1/$2.csr" -CA "$1/$3.pem" -CAkey "$1/$3.key" -CAcreateserial -days 2 \
    -out "$1/$2.pem" -extfile <(echo "subjectAltName=$4") 2>/dev/null
}
