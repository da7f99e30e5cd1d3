package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const chainGraph = `{"format":"reprise.graph/1","ops":[
{"name":"f","cost":3,"det":"exact","inputs":[],"outputs":[0]},
{"name":"g","cost":5,"det":"exact","inputs":[0],"outputs":[1]},
{"name":"h","cost":9,"det":"exact","inputs":[0,1],"outputs":[2]}],
"values":[{"name":"x","bytes":100},{"name":"y","bytes":80},{"name":"z","bytes":100,"output":true}]}`

// Flags that contradict each other, mean nothing where they stand, or are empty, are wrong usage: none is ignored.
func TestFlagsAreNotIgnored(t *testing.T) {
	g, elf := write(t, t.TempDir(), "g.json", chainGraph), write(t, t.TempDir(), "model", "\x7fELF")
	for _, line := range [][]string{
		{"plan", g, "--train"}, {"plan", g, "--lr", "7"}, {"plan", g, "--target", "zzz"}, {"plan", g, "--bind", "q"},
		{"plan", g, "--pareto=0"}, {"plan", g, "--pareto=-5"}, {"plan", g, "--pareto=100000000"}, {"plan", g, "--pareto", "--budget", "50%"},
		{"plan", tiny, "--train", "--pareto", "-o", "p"}, {"plan", tiny, "--train", "--policy", "full", "--compare", "--pareto"},
		{"plan", tiny, "--train", "--policy", "full", "--compare", "--budget", "50%"}, {"plan", tiny, "--train", "--policy", "full", "--compare", "-o", "p"},
		{"verify", tiny, "--steps", "0"}, {"verify", tiny, "--steps", "-1"}, {"verify", tiny, "--probe", "-1"}, {"verify", tiny, "--interpret", "maybe"},
		{"run", tiny, "--repeat", "0"}, {"run", tiny, "--threads", "-1"}, {"run", elf, "--budget", "50%"}, {"run", elf, "--policy", "full"},
		{"explain", elf, "--budget", "50%"}, {"explain", elf, "--train"}, {"explain", g, "--policy", "full"},
		{"plan", tiny, "--budget", ""}, {"plan", tiny, "--policy", ""}, {"plan", tiny, "--target", ""}, {"plan", tiny, "--time-limit", "-1s"},
	} {
		status, out, stderr := cli(line...)
		assert.Equal(t, 2, status, "%q: %s%s", line, out, stderr)
		assert.Empty(t, out, "%q", line)
	}
}

// An output that is a pipe or a device is written to and stays one; a directory is named as such; nothing is left beside.
func TestOutputIsNoFile(t *testing.T) {
	dir := t.TempDir()
	g := write(t, dir, "g.json", chainGraph)
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o666))
	read := make(chan []byte)
	go func() { data, _ := os.ReadFile(pipe); read <- data }()
	ok(t, "plan", g, "-o", pipe)
	assert.Equal(t, "reprise.plan/1", document(t, string(<-read))["format"])
	at, err := os.Stat(pipe)
	require.NoError(t, err)
	assert.False(t, at.Mode().IsRegular())
	status, _, stderr := cli("plan", g, "-o", dir)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "is a directory")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2)
	if toolchain(t); !t.Failed() {
		status, _, stderr = cli("compile", tiny, "-o", pipe)
		assert.Equal(t, 1, status)
		assert.Contains(t, stderr, "no regular file")
	}
}

// Every command that prints anything prints one document with --json.
func TestJSONEverywhere(t *testing.T) {
	ir := write(t, t.TempDir(), "v.ir", vector)
	for _, line := range [][]string{{"opt", ir}, {"opt", "--list"}, {"models"}, {"policies"}, {"doctor"}} {
		status, out, _ := cli(append(line, "--json")...)
		assert.LessOrEqual(t, status, 1, "%q", line)
		assert.True(t, json.Valid([]byte(out)), "%q: %s", line, out)
	}
	assert.Equal(t, vector, document(t, ok(t, "opt", ir, "--json"))["module"])
}

// What the planner can't do with a graph file names the file.
func TestGraphErrorsNameTheFile(t *testing.T) {
	g := write(t, t.TempDir(), "g.json", strings.Replace(chainGraph, `"bytes":100}`, `"bytes":100,"policy":"must-offload"}`, 1))
	status, out, _ := cli("plan", g, "--json")
	assert.Equal(t, 1, status)
	e := document(t, out)["error"].(map[string]any)
	assert.Equal(t, "graph", e["code"])
	assert.Equal(t, g, e["file"])
	assert.NotContains(t, e["message"], "planner:")
}

// A program that the system ends says so, also as a document.
func TestCrashIsReported(t *testing.T) {
	dir := t.TempDir()
	elf := filepath.Join(dir, "model")
	sh, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(elf, sh[:len(sh)/3], 0o777)) // cut short: its segments are not there
	status, out, _ := cli("run", elf, "--json")
	assert.Equal(t, 1, status)
	assert.Equal(t, "run", document(t, out)["error"].(map[string]any)["code"])
}

// The smallest budget found is never more than what the policy takes by itself, nor than a plan in the same report.
func TestSmallestFoundIsSmallest(t *testing.T) {
	for _, rule := range []string{"must save", "use full", "must recompute layer=layers.0"} {
		alone := document(t, ok(t, "plan", gpt, "--train", "--rule", rule, "--json"))
		least := document(t, ok(t, "plan", gpt, "--train", "--rule", rule, "--budget", "min", "--json"))
		assert.LessOrEqual(t, least["min_budget_bytes"], least["promised_peak_bytes"], rule)
		assert.LessOrEqual(t, least["min_budget_bytes"], alone["promised_peak_bytes"], rule)
		assert.LessOrEqual(t, least["budget_bytes"], alone["promised_peak_bytes"], rule)
	}
}
