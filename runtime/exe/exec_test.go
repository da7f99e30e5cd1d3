package exe_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

// program is a built executable and what a test runs it with.
type program struct {
	t    testing.TB
	path string
	dir  string // its working directory, empty at the start
}

// shared are the driver and the kernels that all tests link.
type shared struct {
	driver  *exe.Driver
	kernels string
}

// compileShared compiles once for all tests of the package.
var compileShared = sync.OnceValues(func() (shared, error) {
	dir, err := os.MkdirTemp("", "reprise-test-")
	if err != nil {
		return shared{}, err
	}
	driver, err := exe.CompileDriver(context.Background(), dir, false)
	return shared{driver, filepath.Join(dir, "kernels.o")}, errors.Join(err, fixture.CompileKernels(filepath.Join(dir, "kernels.o")))
})

func TestMain(m *testing.M) {
	status := m.Run()
	if s, err := compileShared(); err == nil {
		_ = os.RemoveAll(filepath.Dir(s.kernels))
	}
	os.Exit(status)
}

func buildProgram(t *testing.T, m *exe.Model) program {
	t.Helper()
	return buildNamed(t, m, m.Name)
}

func buildNamed(t *testing.T, m *exe.Model, name string) program {
	t.Helper()
	fixture.NeedToolchain(t)
	s, err := compileShared()
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), name)
	require.NoError(t, s.driver.Build(context.Background(), m, []string{s.kernels}, out))
	return program{t, out, t.TempDir()}
}

// at is the program in a fresh directory of another test.
func (p program) at(t *testing.T) program { return program{t, p.path, t.TempDir()} }

// result is what a process said.
type result struct {
	status         int
	stdout, stderr string
}

func (p program) run(args ...string) result {
	p.t.Helper()
	return p.exec(exec.Command(p.path, args...))
}

func (p program) exec(cmd *exec.Cmd) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// line is any line of --json.
type line struct {
	Step       int64
	Loss       *float64
	LossBits   string `json:"loss_bits"`
	MS         float64
	Done       bool
	Steps      int64
	Seed       uint64
	Hash       string `json:"state_sha256"`
	Promised   int64  `json:"promised_peak_bytes"`
	Arena      int64  `json:"arena_bytes"`
	Peak       int64  `json:"peak_rss_bytes"`
	Other      int64  `json:"other_rss_bytes"`
	Highest    int64  `json:"highest_byte"`
	Threads    int
	TokensPerS float64 `json:"tokens_per_s"`
	Error      *exe.Error
}

// lines runs with --json, wants status 0 and returns what it said.
func (p program) lines(args ...string) []line {
	p.t.Helper()
	r := p.run(append([]string{"--json"}, args...)...)
	require.Equal(p.t, 0, r.status, "%s%s", r.stdout, r.stderr)
	require.Empty(p.t, r.stderr)
	return parse(p.t, r.stdout)
}

func parse(t testing.TB, stdout string) []line {
	t.Helper()
	var ls []line
	s := bufio.NewScanner(strings.NewReader(stdout))
	for s.Scan() {
		var l line
		require.NoError(t, json.Unmarshal(s.Bytes(), &l), "%s", s.Text())
		ls = append(ls, l)
	}
	return ls
}

// bits are a run's loss bits and state hash, to be compared.
func bits(ls []line) []string {
	var s []string
	for _, l := range ls {
		s = append(s, l.LossBits)
	}
	return append(s, ls[len(ls)-1].Hash)
}

// ways are the hints of errors that name no way out of their own, by code.
func ways(code string) string {
	return map[string]string{
		"memory":     "free some memory, or run on fewer threads",
		"data":       "--describe lists the model's inputs, with their types and shapes",
		"checkpoint": "give a file that this program has saved, undamaged",
		"io":         "give a path in a directory that exists and may be written, with room on its disk",
	}[code]
}

// fails wants status 1, this message and hint ("": that of its code), as text and as JSON.
func (p program) fails(code, message, hint string, args ...string) {
	p.t.Helper()
	if hint == "" {
		hint = ways(code)
	}
	r := p.run(args...)
	require.Equal(p.t, 1, r.status, "%s%s", r.stdout, r.stderr)
	want := filepath.Base(p.path) + ": error: " + message + "\n"
	if hint != "" {
		want += "  hint: " + hint + "\n"
	}
	require.Equal(p.t, want, r.stderr)
	r = p.run(append(args, "--json")...)
	require.Equal(p.t, 1, r.status)
	ls := parse(p.t, r.stdout)
	require.NotEmpty(p.t, ls)
	require.Equal(p.t, &exe.Error{Code: code, Message: message, Hint: hint}, ls[len(ls)-1].Error)
}

func (p program) write(name string, data []byte) string {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, name), data, 0o666))
	return name
}

func (p program) read(name string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, name))
	require.NoError(p.t, err)
	return data
}

func (p program) files() []string {
	p.t.Helper()
	var names []string
	es, err := os.ReadDir(p.dir)
	require.NoError(p.t, err)
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

// start runs until the first line is there, calls then, and returns all it said.
func (p program) start(then func(*os.Process), args ...string) result {
	p.t.Helper()
	cmd := exec.Command(p.path, append([]string{"--json"}, args...)...)
	cmd.Dir = p.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())
	r := bufio.NewReader(pipe)
	first, err := r.ReadString('\n')
	require.NoError(p.t, err)
	then(cmd.Process)
	rest, err := io.ReadAll(r)
	require.NoError(p.t, err)
	_ = cmd.Wait() // its status is looked at
	return result{cmd.ProcessState.ExitCode(), first + string(rest), stderr.String()}
}

// safetensors is a checkpoint's header and data, by the format's definition.
func safetensors(t testing.TB, file []byte) (map[string]json.RawMessage, []byte) {
	t.Helper()
	n := int(uint64(file[0]) | uint64(file[1])<<8 | uint64(file[2])<<16 | uint64(file[3])<<24)
	h := map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(file[8:8+n], &h))
	return h, file[8+n:]
}

// makeSafetensors is a file with this header and data.
func makeSafetensors(header string, data []byte) []byte {
	n := len(header)
	file := []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0}
	return append(append(file, header...), data...)
}

// tensor returns a tensor's bytes.
func tensor(t testing.TB, file []byte, name string) []byte {
	t.Helper()
	h, data := safetensors(t, file)
	var d struct {
		Offsets [2]int `json:"data_offsets"`
	}
	require.Contains(t, h, name)
	require.NoError(t, json.Unmarshal(h[name], &d))
	return data[d.Offsets[0]:d.Offsets[1]]
}

// convertModel has an input of each element type, [4], and copies it to an output.
func convertModel() *exe.Model {
	b := fixture.New("convert", false)
	for _, d := range dtype.All() {
		if d == dtype.Key {
			continue
		}
		in := b.Value(exe.RoleInput, d.String(), d, "zeros", 4)
		out := b.Value(exe.RoleOutput, "out."+d.String(), d, "", 4)
		b.Model.Step = append(b.Model.Step, fixture.Launch("copy", 4*d.Size(), in, fixture.W(out)))
	}
	return b.Done()
}
