// One CUDA device for machines without any: its memory and its kernels are the host's, also where torch is built for CUDA.
//
// It is stricter than a fast device happens to be. Copies between the device and pinned memory that are not awaited are put off until
// their stream is, so that who reads too early reads rubbish; memory that is given back while another stream still uses it is lost
// to that stream; fresh memory holds rubbish; and tensors of both devices in one operation are refused.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>

namespace {

using at::Tensor;
using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::IValue, c10::ScalarType, c10::Stream, c10::StreamId;
template <typename T>
using Maybe = std::optional<T>;

constexpr int kFresh = 0x7f, kTooEarly = 0x5a, kGivenBack = 0x5b;
constexpr int64_t kGranule = 512;  // bytes by which CUDA's allocator rounds
constexpr int64_t kCapacity = int64_t(8) << 30;

const Device kDevice(DeviceType::CUDA, 0);
const c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// Of all that follows but `current`. None of it is ever destroyed: threads, and memory that is given back, may outlive a process's end.
auto& lock = *new std::recursive_mutex;

// Memory -------------------------------------------------------------------------------------------------------------------------

struct Block {
  int64_t num_bytes;
  StreamId stream;             // for which it was allocated
  std::set<StreamId> users{};  // that record_stream told of
  bool is_pinned = false;
};
auto& blocks = *new std::map<const char*, Block>;
int64_t held = 0, most = 0;  // bytes of the device

struct Copy {
  Tensor to, from;  // on the host, without a share in the memory
  bool is_lost = false;
};
auto& put_off = *new std::map<StreamId, std::vector<Copy>>;
thread_local StreamId current = 0;
std::atomic<StreamId> last_stream{0};

std::map<const char*, Block>::iterator block_of(const void* data) {
  auto next = blocks.upper_bound(static_cast<const char*>(data));
  if (next == blocks.begin()) return blocks.end();
  --next;
  return static_cast<const char*>(data) < next->first + next->second.num_bytes ? next : blocks.end();
}

void finish(StreamId stream) {
  std::lock_guard guard(lock);
  auto found = put_off.extract(stream);
  if (!found) return;
  at::NoGradGuard none;
  for (auto& copy : found.mapped())
    if (!copy.is_lost) copy.to.copy_(copy.from);
}

void finish_all() {
  std::lock_guard guard(lock);
  while (!put_off.empty()) finish(put_off.begin()->first);
}

bool lies_in(const Tensor& host, const char* begin, const Block& block) {
  auto data = static_cast<const char*>(host.data_ptr());
  return begin <= data && data < begin + block.num_bytes;
}

void lose(Copy& copy, bool is_target_there) {
  copy.is_lost = true;
  if (is_target_there && copy.to.is_contiguous()) std::memset(copy.to.data_ptr(), kGivenBack, copy.to.nbytes());
}

// What streams that the allocator knows of do with the memory is done first; what others do, is lost.
void before_giving_back(const char* begin, const Block& block) {
  std::vector<StreamId> known;
  for (auto& [stream, copies] : put_off)
    for (auto& copy : copies) {
      bool is_source = lies_in(copy.from, begin, block);
      if (copy.is_lost || (!is_source && !lies_in(copy.to, begin, block))) continue;
      if (block.is_pinned || stream == block.stream || block.users.count(stream)) known.push_back(stream);
      else lose(copy, is_source);
    }
  for (auto stream : known) finish(stream);
}

void give_back(void* data) {
  std::lock_guard guard(lock);
  auto block = blocks.find(static_cast<const char*>(data));
  before_giving_back(block->first, block->second);
  if (!block->second.is_pinned) held -= block->second.num_bytes;
  blocks.erase(block);
  std::free(data);
}

void* allocate(size_t size, bool is_pinned) {
  int64_t rounded = std::max<int64_t>((size + kGranule - 1) / kGranule, 1) * kGranule;
  std::lock_guard guard(lock);
  if (!is_pinned) {
    TORCH_CHECK_WITH(OutOfMemoryError, held + rounded <= kCapacity, "CUDA out of memory: the emulated device has ", kCapacity, " bytes");
    most = std::max(most, held += rounded);
  }
  auto data = std::aligned_alloc(kGranule, rounded);
  TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "the host is out of memory");
  std::memset(data, kFresh, rounded);
  blocks[static_cast<const char*>(data)] = {rounded, current, {}, is_pinned};
  return data;
}

struct DeviceMemory final : c10::Allocator {
  at::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, kDevice};
    auto data = ::allocate(size, false);
    return {data, data, &give_back, kDevice};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
} device_memory;

struct PinnedMemory final : at::HostAllocator {
  at::DataPtr allocate(size_t size) override {
    auto data = ::allocate(size, true);
    return {data, data, &give_back, at::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
  bool record_event(void*, void*, Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
} pinned_memory;

bool is_pinned(const void* data) {
  std::lock_guard guard(lock);
  auto block = block_of(data);
  return block != blocks.end() && block->second.is_pinned;
}

// Time ---------------------------------------------------------------------------------------------------------------------------

// What the host takes to give the device an operation, and the device to do it, and for each byte that goes in; in seconds that pass
// on these clocks alone.
double giving = 0, doing = 0, moving = 0;
double host_clock = 0, device_clock = 0;

void keep_device(double seconds) {
  std::lock_guard guard(lock);
  host_clock += giving;
  device_clock = std::max(device_clock, host_clock) + seconds;
}

void do_one(int64_t num_bytes) { keep_device(doing + moving * num_bytes); }

void await_device() {
  std::lock_guard guard(lock);
  host_clock = std::max(host_clock, device_clock);
}

// Streams ------------------------------------------------------------------------------------------------------------------------

void await_all() {
  await_device();
  finish_all();
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  long versionCuDNN() const override { return 0; }
  long versionRuntimeCuDNN() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  int getNumGPUs() const override { return 1; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  void deviceSynchronize(DeviceIndex) const override { await_all(); }
};

// An event is the stream that it was recorded in: who waits for it, waits for all of that.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static Stream stream(StreamId id) { return Stream(Stream::UNSAFE, kDevice, id); }
  static void finish_event(void* event) {
    if (event) finish(reinterpret_cast<StreamId>(event) - 1);
  }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream(current); }
  Stream getDefaultStream(Device) const override { return stream(0); }
  Stream getNewStream(Device, int) const override { return stream(++last_stream); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return stream(++last_stream); }
  Stream exchangeStream(Stream next) const override { return stream(std::exchange(current, next.id())); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const Stream& in, DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(in.id() + 1);
  }
  void block(void* event, const Stream&) const override { finish_event(event); }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream& of) const override {
    await_device();
    finish(of.id());
  }
  void synchronizeEvent(void* event) const override {
    await_device();
    finish_event(event);
  }
  void synchronizeDevice(DeviceIndex) const override { await_all(); }
};

// Operations ---------------------------------------------------------------------------------------------------------------------

Tensor host_of(const Tensor& tensor) {  // a view of the same memory
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, options);
}

Tensor unowned(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
}

void copy_now(const Tensor& to, const Tensor& from) {
  at::NoGradGuard none;
  if (from.numel()) host_of(to).copy_(host_of(from));
}

Tensor to_device(const Tensor& host) {
  Tensor made = at::detail::empty_strided_generic(host.sizes(), host.strides(), &device_memory, kCuda, host.scalar_type());
  copy_now(made, host);
  return made;
}

Tensor empty(c10::SymIntArrayRef size, Maybe<ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>, Maybe<bool>,
             Maybe<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_memory, kCuda, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, Maybe<ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>,
                     Maybe<bool>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  return at::detail::empty_strided_generic(sizes, strides, &device_memory, kCuda, c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, Maybe<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto num_bytes = at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), self.storage_offset());
  auto& storage = self.storage();
  if (num_bytes > storage.nbytes()) {
    auto data = device_memory.allocate(num_bytes);
    if (storage.nbytes()) std::memcpy(data.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(num_bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& other) {
  return set_storage(self, other.storage(), other.storage_offset(), other.sym_sizes(), other.sym_strides());
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, Maybe<c10::SymInt> offset) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset ? Maybe<int64_t>(offset->expect_int()) : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

bool may_be_put_off(const Tensor& to, const Tensor& from) {
  if (to.scalar_type() != from.scalar_type()) return false;
  return to.is_cpu() ? is_pinned(to.data_ptr()) : from.is_cpu() && is_pinned(from.data_ptr());
}

Tensor& copy(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_same(from) || self.numel() == 0) return self;
  do_one(from.nbytes());
  if (!non_blocking && (self.is_cpu() || from.is_cpu())) await_device();
  if (!non_blocking || !may_be_put_off(self, from)) {
    finish(current);
    copy_now(self, from);
    return self;
  }
  std::lock_guard guard(lock);
  if (self.is_contiguous()) std::memset(self.data_ptr(), kTooEarly, self.nbytes());
  put_off[current].push_back({unowned(self), unowned(from.expand_as(self))});
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  await_device();
  finish(current);
  return host_of(self).item();
}

int64_t fused_sdp_choice(const Tensor&, const Tensor&, const Tensor&, const Maybe<Tensor>&, double, bool, Maybe<double>, bool) { return 0; }

void record_stream(Tensor& self, Stream stream) {
  std::lock_guard guard(lock);
  if (auto block = block_of(self.storage().data()); block != blocks.end()) block->second.users.insert(stream.id());
}

// Every other operation: that of the host, on views of the device's memory.
class OnHost {
 public:
  OnHost(const c10::OperatorHandle& operation, torch::jit::Stack& stack) : operation_(operation), stack_(stack) {}

  void run() {
    auto& schema = operation_.schema();
    for (auto& value : last(schema.arguments().size())) value = of_host(value);
    int64_t num_bytes = 0;
    for (auto& [device, host] : pairs_) num_bytes += device.nbytes();
    do_one(num_bytes);
    auto& name = operation_.operator_name().name;
    bool may_mix = name.find("index") != std::string::npos;  // indices may lie on the host
    TORCH_CHECK(may_mix || !has_host_ || pairs_.empty(), "Expected all tensors to be on the same device, but ", name, " was given both");
    {
      at::AutoDispatchBelowAutograd below;
      operation_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    for (auto& value : last(schema.returns().size())) value = of_device(value);
    for (auto& [device, host] : pairs_) follow(device, host);  // lists of outputs are not returned
  }

 private:
  std::span<IValue> last(size_t count) { return {stack_.data() + stack_.size() - count, count}; }

  Tensor of_host(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_host_ |= tensor.dim() > 0;
      return tensor;
    }
    pairs_.emplace_back(tensor, host_of(tensor));
    return pairs_.back().second;
  }

  IValue of_host(const IValue& value) {
    if (value.isDevice()) return Device(at::kCPU);
    if (value.isTensor()) return of_host(value.toTensor());
    if (value.isTensorList()) {
      std::vector<Tensor> made;
      for (const Tensor& tensor : value.toTensorVector()) {
        has_host_ |= tensor.defined() && !tensor.is_cuda() && !is_foreach_;  // one number alone may lie on the host, but in no list
        made.push_back(of_host(tensor));
      }
      return made;
    }
    if (!value.isOptionalTensorList()) return value;
    c10::List<Maybe<Tensor>> made;
    for (Maybe<Tensor> tensor : value.toOptionalTensorList()) made.push_back(tensor ? Maybe<Tensor>(of_host(*tensor)) : tensor);
    return made;
  }

  // The device's tensor of one that went in, a view of it, or a copy of what is new.
  Tensor of_device(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (auto& [device, host] : pairs_)
      if (host.is_same(tensor)) {
        follow(device, host);
        return device;
      }
    for (auto& [device, host] : pairs_)
      if (host.has_storage() && tensor.has_storage() && tensor.storage().is_alias_of(host.storage())) {
        Tensor made = at::detail::empty_generic({0}, &device_memory, kCuda, tensor.scalar_type(), std::nullopt);
        auto offset = device.storage_offset() + tensor.storage_offset();
        return set_storage(made, device.storage(), offset, tensor.sym_sizes(), tensor.sym_strides());
      }
    return to_device(tensor);
  }

  IValue of_device(const IValue& value) {
    if (value.isTensor()) return of_device(value.toTensor());
    if (!value.isTensorList()) return value;
    std::vector<Tensor> made;
    for (const Tensor& tensor : value.toTensorVector()) made.push_back(of_device(tensor));
    return made;
  }

  // An output that the operation resized is resized on the device.
  static void follow(const Tensor& device, const Tensor& host) {
    if (host.sizes() == device.sizes()) return;
    resize(device, host.sym_sizes(), std::nullopt);
    copy_now(device, host);
  }

  const c10::OperatorHandle& operation_;
  torch::jit::Stack& stack_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;
  bool has_host_ = false;
  bool is_foreach_ = operation_.operator_name().name.find("_foreach") != std::string::npos;  // which take what is mixed one by one
};

void on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  finish(current);
  OnHost(operation, *stack).run();
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

void implement_own(torch::Library& library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("copy_", &copy);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("_fused_sdp_choice", &fused_sdp_choice);
  library.impl("record_stream", &record_stream);
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&on_host>());  // else it is made of one that resizes its output
}

// What a build of torch for CUDA has of its own for the key: kernels of a device that is not there.
void put_off_kernels(std::vector<c10::RegistrationHandleRAII>& registered) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
    auto kernel = c10::KernelFunction::makeFromBoxedFunction<&on_host>();
    registered.push_back(dispatcher.registerImpl(name, c10::DispatchKey::CUDA, std::move(kernel), std::nullopt, nullptr, "emulated"));
  }
}

const bool is_registered = [] {
  c10::SetAllocator(DeviceType::CUDA, &device_memory, 100);
  at::setHostAllocator(DeviceType::CUDA, &pinned_memory, 100);
  return true;
}();

}  // namespace

namespace at {
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, Hooks)
}

extern "C" {
// Called once all of torch is loaded: who registers last, counts.
void take_over() {
  static Guard guard;
  static c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, &guard);
  static struct : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silence;
  c10::WarningUtils::WarningHandlerGuard none_of_kernels_replaced(&silence);
  static auto& replaced = *new std::vector<c10::RegistrationHandleRAII>;
  put_off_kernels(replaced);
  static auto& own = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  implement_own(own);
}
int64_t held_bytes() { return held; }
int64_t most_bytes() { return most; }
void reset_most() { most = held; }
int64_t capacity_bytes() { return kCapacity; }
int64_t current_stream() { return current; }
void set_stream(int64_t stream) { current = stream; }
int64_t new_stream() { return ++last_stream; }
void finish_stream(int64_t stream) { finish(stream); }
void finish_streams() { await_all(); }
void set_pace(double giving_seconds, double doing_seconds, double seconds_per_byte) {
  giving = giving_seconds, doing = doing_seconds, moving = seconds_per_byte;
}
void keep_busy(double seconds) { keep_device(seconds); }
double host_seconds() { return host_clock; }
double device_seconds() { return std::max(host_clock, device_clock); }
}
