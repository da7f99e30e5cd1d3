package exe_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
	"reprise/runtime/native"
)

// TestSHA256 compares both ways of the driver with the library's, on all lengths up to
// four blocks and in pieces of any length.
func TestSHA256(t *testing.T) {
	fixture.NeedToolchain(t)
	clang, err := exe.Toolchain()
	require.NoError(t, err)
	dir := t.TempDir()
	for _, f := range native.Sources(false) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o666))
	}
	// Lines of "LENGTH PIECE" on standard input; the data are x·x + 1 of each index x.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "test.c"), []byte(`
#include <stdio.h>
#include "sha256.c"
static bool plain;
bool rp_cpu_has(const char *f) { return !plain && (__builtin_cpu_init(), strcmp(f, "sha") == 0 ? __builtin_cpu_supports("sha") : 1); }
int main(void) {
    static unsigned char data[1000];
    int n, piece;
    for (int i = 0; i < 1000; i++) data[i] = (unsigned char)(i * i + 1);
    while (scanf("%d %d", &n, &piece) == 2)
        for (int way = 0; way < 2; way++) {
            rp_sha256 s;
            char hex[65];
            plain = way == 0;
            rp_sha256_start(&s);
            for (int at = 0; at < n; at += piece) rp_sha256_add(&s, data + at, (size_t)(n - at < piece ? n - at : piece));
            rp_sha256_end(&s, hex);
            puts(hex);
        }
    return 0;
}
`), 0o666))
	program := filepath.Join(dir, "test")
	said, err := exec.Command(clang, "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-o", program, filepath.Join(dir, "test.c")).CombinedOutput()
	if err != nil {
		said, err = exec.Command(clang, "-O1", "-o", program, filepath.Join(dir, "test.c")).CombinedOutput()
	}
	require.NoError(t, err, "%s", said)

	data := make([]byte, 1000)
	for i := range data {
		data[i] = byte(i*i + 1)
	}
	r := rand.New(rand.NewPCG(1, 1))
	var in bytes.Buffer
	var want []string
	for n := range 1000 {
		piece := 1000
		if n >= 257 {
			piece = 1 + r.IntN(200)
		}
		in.WriteString(fmt.Sprintf("%d %d\n", n, piece))
		h := sha256.Sum256(data[:n])
		want = append(want, hex.EncodeToString(h[:]), hex.EncodeToString(h[:]))
	}
	cmd := exec.Command(program)
	cmd.Stdin = &in
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, want, strings.Fields(string(out)))
}
