package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/tensor"
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
		{"plan", tiny, "--budget", ""}, {"plan", tiny, "--budget", " "}, {"plan", g, "--budget", ""}, {"plan", tiny, "--rule", " "}, {"plan", tiny, "--policy", ""}, {"plan", tiny, "--target", ""}, {"plan", tiny, "--time-limit", "-1s"},
		{"compile", tiny, "-o", "p", "--emit", ""}, {"compile", tiny, "-o", "p", "--emit", "ir=x"}, {"compile", tiny, "-o", "p", "--emit", "dot"},
		{"plan", tiny, "--budget", "1.5"}, {"plan", tiny, "--budget", "0.5B"}, {"plan", tiny, "--budget", "0"}, {"plan", g, "--budget", "1.5"},
		{"plan", tiny, "--costs", ""}, {"explain", tiny, "--top", "-1"}, {"bench", "step", "--rounds", "0"}, {"bench", "planner", "--row", "none such", "moe"},
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
	g = write(t, t.TempDir(), "g.json", chainGraph)
	short := write(t, t.TempDir(), "plan.json", `{"format":"reprise.plan/1","order":[0]}`)
	_, out, _ = cli("check", g, short, "--json")
	assert.Equal(t, short, document(t, out)["error"].(map[string]any)["file"])
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
	for k, rule := range []string{"use full", "must save", "must recompute layer=layers.0"} {
		spec := tiny
		if k == 0 || os.Getenv("REPRISE_LONG") != "" {
			spec = gpt
		}
		alone := document(t, ok(t, "plan", spec, "--train", "--rule", rule, "--json"))
		least := document(t, ok(t, "plan", spec, "--train", "--rule", rule, "--budget", "min", "--json"))
		assert.LessOrEqual(t, least["min_budget_bytes"], least["promised_peak_bytes"], rule)
		assert.LessOrEqual(t, least["min_budget_bytes"], alone["promised_peak_bytes"], rule)
		assert.LessOrEqual(t, least["budget_bytes"], alone["promised_peak_bytes"], rule)
	}
}

// A share of a peak that rounds down to nothing is a budget that can't be met, not the absence of one.
func TestShareOfNextToNothing(t *testing.T) {
	g := write(t, t.TempDir(), "g.json", strings.NewReplacer("100", "1", "80", "1").Replace(chainGraph))
	status, out, _ := cli("plan", g, "--budget", "20%", "--json")
	assert.Equal(t, 1, status)
	assert.Equal(t, "budget", document(t, out)["error"].(map[string]any)["code"])
	status, out, _ = cli("plan", tiny, "--budget", "0.0000001%", "--json")
	assert.Equal(t, 1, status)
	assert.Equal(t, "budget", document(t, out)["error"].(map[string]any)["code"])
}

// Outputs whose names give one file are refused: none is written over the other.
func TestOutputsOfOneFile(t *testing.T) {
	dir := t.TempDir()
	ir := write(t, dir, "m.ir", strings.NewReplacer("(y, m)", `("a/b", a_b)`).Replace(vector))
	ok(t, "run", ir, "--interpret", "--input", "x="+zeros(t, dir, "x", dtype.F32, 3, 4), "--input", "n="+zeros(t, dir, "n", dtype.I32, 3))
	lines := [][]string{{"run", ir, "--interpret", "--input", "x=" + filepath.Join(dir, "x"), "--input", "n=" + filepath.Join(dir, "n")}}
	if _, err := exec.LookPath("clang-19"); err == nil {
		lines = append(lines, []string{"run", ir})
	}
	for _, line := range lines {
		status, out, _ := cli(append(line, "--output", filepath.Join(dir, "out"), "--json")...)
		assert.Equal(t, 1, status)
		var doc struct{ Error struct{ Message string } }
		require.NoError(t, json.Unmarshal([]byte(out), &doc), out)
		assert.Contains(t, doc.Error.Message, "would both be written to")
	}
	assert.NoDirExists(t, filepath.Join(dir, "out"))
}

func zeros(t *testing.T, dir, name string, of dtype.Type, shape ...int64) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, writeNpy(path, tensor.New(of, shape...)))
	return path
}

// A foreign kernel whose declared time can't be added up is named where it stands.
func TestForeignCostIsATime(t *testing.T) {
	for _, cost := range []string{"9223372036854775807", "-7"} {
		ir := write(t, t.TempDir(), "m.ir", `func @step(%x: f32[4] {feed="normal", role="input"}) -> (y) {
  %y = foreign %x {cost_ns=`+cost+`, results=strs["f32[4]"], symbol="a"} : f32[4] loc(l)
  return %y
}
`)
		status, out, _ := cli("plan", ir, "--json")
		assert.Equal(t, 1, status)
		e := document(t, out)["error"].(map[string]any)
		assert.Equal(t, "foreign", e["op"])
		assert.Contains(t, e["message"], "cost_ns")
	}
}

// What is wrong with the parameters of a module is a fault of the model, and says how to mend it.
func TestFaultyParameters(t *testing.T) {
	toolchain(t)
	for param, want := range map[string]string{
		`{feed="frob", role="input"}`:          "unknown feed",
		`{feed="uniform_int:0", role="input"}`: "want a bound",
		`{role="param"}`:                       "init",
		`{role="parm"}`:                        `role "parm"`,
	} {
		dir := t.TempDir()
		ir := write(t, dir, "m.ir", "func @step(%x: f32[4] "+param+") -> (y) {\n  %y = exp %x : f32[4] loc(l)\n  return %y\n}\n")
		status, out, _ := cli("compile", ir, "-o", filepath.Join(dir, "out"), "--json")
		assert.Equal(t, 1, status, param)
		e := document(t, out)["error"].(map[string]any)
		assert.Equal(t, "model", e["code"], param)
		assert.Contains(t, e["message"], want, param)
		assert.NotEmpty(t, e["hint"], param)
		assert.NoFileExists(t, filepath.Join(dir, "out"))
	}
}

// What @init makes is state of @step and of its type: a state of fewer elements would be half garbage, one of more would
// be written over what lies behind it.
func TestInitFitsStep(t *testing.T) {
	for init, want := range map[string]string{
		"@init(%key: key[] {role=\"key\"}) -> (w) {\n  %v = uniform %key {rng=0, shape=[3]} : f32[3] loc(l)":   `makes "w" as f32[3], and @step takes it as f32[4]`,
		"@init(%key: key[] {role=\"key\"}) -> (w) {\n  %v = uniform %key {rng=0, shape=[40]} : f32[40] loc(l)": `makes "w" as f32[40], and @step takes it as f32[4]`,
		"@init() -> (v) {\n  %v = constant {value=dense(f32[]: 1)} : f32[] loc(l)":                             `"v", which is no state`,
		"@init(%x: f32[8] {role=\"input\"}) -> (w) {\n  %v = slice %x {limit=[4], start=[0]} : f32[4] loc(l)":  "@init takes %x as f32[8], and @step as f32[4]",
	} {
		ir := write(t, t.TempDir(), "m.ir", "func "+init+"\n  return %v\n}\nfunc @step(%w: f32[4] {role=\"param\"}, %x: f32[4] {role=\"input\"}) -> (w) {\n  %y = mul %w, %x : f32[4] loc(l)\n  return %y\n}\n")
		status, out, _ := cli("plan", ir, "--json")
		assert.Equal(t, 1, status, init)
		e := document(t, out)["error"].(map[string]any)
		assert.Contains(t, e["message"], want)
		assert.Equal(t, ir, e["file"])
		assert.NotEmpty(t, e["hint"])
	}
}

// Whatever is wrong with what is given, the document names the file it is in, if it is in one, and a way out; and usage that is wrong
// says which.
func TestEveryErrorHasAWayOut(t *testing.T) {
	dir := t.TempDir()
	g, none := write(t, dir, "g.json", chainGraph), filepath.Join(dir, "none")
	empty, noise := write(t, dir, "empty.json", ""), write(t, dir, "noise", "\x00\x01\x02")
	ranks := write(t, dir, "ranks.ir", "func @step(%x: f32[8] {feed=\"normal\", role=\"input\"}) -> (y) {\n  %y = all_reduce %x {size=2} : f32[8] loc(a)\n  return %y\n}\n")
	for _, c := range []struct {
		code, file, says string
		line             []string
	}{
		{"model", none + ".ir", "no file of this name", []string{"plan", none + ".ir"}},
		{"model", none, "no file of this name", []string{"explain", none}},
		{"model", none, "no file of this name", []string{"run", none}},
		{"model", none, "no file of this name", []string{"verify", none}},
		{"model", dir, "directory", []string{"plan", dir}},
		{"unsupported", noise, "of no form that is known", []string{"compile", noise, "-o", none}},
		{"unsupported", g, "graph for the planner", []string{"verify", g}},
		{"file", none + ".json", "no such file", []string{"plan", none + ".json"}},
		{"file", none + ".json", "no such file", []string{"check", g, none + ".json"}},
		{"file", none + ".ir", "no such file", []string{"opt", none + ".ir"}},
		{"file", none, "no such file", []string{"plan", tiny, "--train", "--costs", none}},
		{"file", none + ".json", "no such file", []string{"explain", g, none + ".json"}},
		{"policy", none, "no such file", []string{"plan", tiny, "--train", "--policy", none}},
		{"policy", dir, "is a directory", []string{"plan", tiny, "--train", "--policy", dir}},
		{"policy", "--rule", "must what?", []string{"plan", tiny, "--train", "--rule", "must"}},
		{"graph", empty, "the file is empty", []string{"plan", empty}},
		{"parse", empty, "no function", []string{"opt", empty}},
		{"plan", g, "want \"reprise.plan/1\"", []string{"check", g, g}},
		{"io", none + "/x", "no such file", []string{"plan", g, "-o", none + "/x"}},
		{"io", dir, "is a directory", []string{"plan", g, "-o", dir}},
		{"unsupported", "", "2 participants", []string{"plan", ranks}},
		{"option", "", "no open sizes", []string{"plan", tiny, "--bind", "x=3"}},
		{"usage", "", "--emit \"foo\": want some of ir, kern, llvm, ptx, plan, dot=DIR, passes=DIR", []string{"compile", tiny, "-o", none, "--emit", "foo"}},
		{"usage", "", "--emit is given and empty: want some of ir, kern", []string{"compile", tiny, "-o", none, "--emit", ""}},
		{"usage", "", "budget \"1.5\" is no whole number of bytes", []string{"plan", tiny, "--budget", "1.5"}},
		{"usage", "", "budget \"0\" leaves no byte", []string{"plan", tiny, "--budget", "0"}},
		{"usage", "", "budget \"-5%\" is no percentage above 0", []string{"plan", tiny, "--budget", "-5%"}},
		{"usage", "", "for \"--steps\" flag: want a number", []string{"train", tiny, "--steps", "x"}},
		{"usage", "", "accepts 1 arg(s), received 0", []string{"plan"}},
	} {
		status, out, stderr := cli(append(c.line, "--json")...)
		want := 1
		if c.code == "usage" {
			want = 2
		}
		assert.Equal(t, want, status, "%q: %s", c.line, stderr)
		e := document(t, out)["error"].(map[string]any)
		assert.Equal(t, c.code, e["code"], "%q", c.line)
		assert.Contains(t, e["message"], c.says, "%q", c.line)
		assert.NotEmpty(t, e["hint"], "%q", c.line)
		if c.file != "" {
			assert.Equal(t, c.file, e["file"], "%q", c.line)
		}
	}
	for text, bytes := range map[string]float64{"1.5GiB": 1.5 * (1 << 30), "5 MiB": 5 << 20, "123456789B": 123456789, "1e9": 1e9} {
		assert.Equal(t, bytes, document(t, ok(t, "plan", tiny, "--budget", text, "--json"))["budget_bytes"])
	}
}
