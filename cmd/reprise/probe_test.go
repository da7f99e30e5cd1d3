package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestVerifyProbe: the probe runs on a model in the text form whose library lies beside it, which also the
// interpreter and the temporary programs find; a kernel that counts its calls and calls itself exact is an
// error that says what to declare, and nothing is wrong once that is declared.
func TestVerifyProbe(t *testing.T) {
	toolchain(t)
	dir := t.TempDir()
	c := write(t, dir, "k.c", `#include "reprise_foreign.h"
static int calls;
void counted(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    (void)lo, (void)hi, (void)scratch;
    for (int i = 0; i < 12; i++) ((float *)args[2])[i] = ((const float *)args[1])[i] + (float)(calls & 7);
    calls++;
}
`)
	out, err := exec.Command("clang-19", "-shared", "-fPIC", "-I", "../../runtime/native/src", "-o", filepath.Join(dir, "libk.so"), c).CombinedOutput()
	require.NoError(t, err, string(out))
	model := func(declared string) string {
		return write(t, dir, declared+".ir", strings.Replace(vector, `%y = tanh %x : f32[3,4] loc(layers.0.act)`,
			`%y = foreign %x {symbol="counted", library="libk.so", results=strs["f32[3,4]"], determinism="`+declared+`"} : f32[3,4]`+
				map[string]string{"exact": "", "tol": " !tol"}[declared]+` loc(layers.0.act)`, 1))
	}
	status, stdout, stderr := cli("verify", model("exact"), "--infer", "--probe", "30", "--interpret", "never")
	assert.Equal(t, 1, status)
	assert.Contains(t, stdout, "counted in layer layers.0.act (foreign), declared exact: 8 different results")
	assert.Contains(t, stderr, `layer layers.0.act: foreign: kernel counted gave 8 different results in 30 runs on equal operands, although it is declared exact`)
	assert.Contains(t, stderr, `determinism="tol"`)

	doc := document(t, ok(t, "verify", model("tol"), "--infer", "--probe", "30", "--interpret", "never", "--steps", "0", "--json"))
	for _, k := range doc["probe"].([]any) {
		k := k.(map[string]any)
		if k["symbol"] == "counted" {
			assert.Equal(t, 8.0, k["distinct"])
			assert.Equal(t, "tol", k["determinism"])
			assert.Equal(t, "layers.0.act", k["layer"])
		} else {
			assert.Equal(t, 1.0, k["distinct"])
		}
	}
	ok(t, "run", model("tol"), "--interpret", "--input", "x="+write(t, dir, "x.npy", npy("<f4", "(3, 4)", make([]byte, 48), 1)),
		"--input", "n="+write(t, dir, "n.npy", npy("<i4", "(3,)", make([]byte, 12), 1)))
}
