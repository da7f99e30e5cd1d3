package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/trace"
)

// TestVerifyTrace: verify reports planned and executed counts of every op; with --trace it compares every value
// that an op writes, and writes the whole trace on request.
func TestVerifyTrace(t *testing.T) {
	toolchain(t)
	file := filepath.Join(t.TempDir(), "trace.txt")
	doc := document(t, ok(t, "verify", tiny, "--steps", "2", "--interpret", "never", "--trace-file", file, "--json"))
	counts := doc["counts"].([]any)
	require.NotEmpty(t, counts)
	for _, c := range counts {
		c := c.(map[string]any)
		assert.Equal(t, c["planned"], c["executed"], c["name"])
		assert.Equal(t, c["executed"].(float64), c["forward"].(float64)+c["recomputed"].(float64))
	}
	tr := doc["trace"].(map[string]any)
	assert.Equal(t, 2.0, tr["steps"])
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, int(tr["values"].(float64)), strings.Count(string(text), " = "))

	status, _, stderr := cli("verify", tiny, "--steps", "1", "--interpret", "never", "--trace-file", filepath.Join(file, "no"))
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "cannot write the trace to")
	assert.Contains(t, stderr, "hint: give --trace-file a place that can be written")
}

// TestDivergenceIsReported: as a message of few lines, and in the JSON document with all that is known.
func TestDivergenceIsReported(t *testing.T) {
	d := &trace.Divergence{Kind: trace.KindClone, Step: 2, Position: 31, Op: 7, ID: 12, Clone: 1, Layer: "layers.2.attn", File: "moe.py", Line: 12, Kernel: "attention", Value: "result 0",
		DType: "f32", Shape: "[2,8]", PlannedHash: "00000000000000aa", OtherHash: "00000000000000bb", FirstHash: "00000000000000bb", Planned: 4, Executed: 4,
		Chain: []trace.Link{{Value: "layers.2.attn.q:contract", Type: "f32[2,8]", Fate: "saved at position 12", Same: true}}}
	var out, err bytes.Buffer
	(&app{out: &out, err: &err}).report(d)
	for _, want := range []string{"moe.py:12: layer layers.2.attn: attention: recomputation 1 is the first op", "planned 00000000000000aa, keeping everything 00000000000000bb", "layers.2.attn.q:contract f32[2,8], saved at position 12"} {
		assert.Contains(t, err.String(), want)
	}
	(&app{out: &out, err: &err, json: true}).report(d)
	e := document(t, out.String())["error"].(map[string]any)
	assert.Equal(t, "trace", e["code"])
	assert.Equal(t, "layers.2.attn", e["layer"])
	assert.Equal(t, "00000000000000aa", e["divergence"].(map[string]any)["planned_hash"])
}
