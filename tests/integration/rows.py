"""What an accelerator outside torch's tree has to integrate (torch 2.13), row by row, and the tests that show it."""

ROWS: dict[str, tuple[str, ...]] = {
    # In C++.
    "Minimal ops (12)": ("test_checklist.py::test_minimal_ops", "test_interop.py::test_storage"),
    "Fallback, global and boxed; AutogradPrivateUse1; AutocastPrivateUse1": (
        "test_checklist.py::test_fallback",
        "test_checklist.py::test_fallback_may_be_forbidden",
        "test_autograd.py::test_gradients_of_a_network",
        "test_amp.py::test_autocast_lists",
    ),
    "Hooks: availability, device count and index, pinned memory, generators, storage resize, shallow copies": (
        "test_devices.py::test_accelerator_is_lazy",
        "test_memory.py::test_pinned_memory",
        "test_generators.py::test_generator_object",
        "test_interop.py::test_storage",
        "test_devices.py::test_module_to_keeps_parameters",
    ),
    "Guard: devices, streams, events": (
        "test_devices.py::test_current_device_is_per_thread",
        "test_streams.py::test_stream_context",
        "test_checklist.py::test_streams_have_priorities_handles_and_queries",
    ),
    "Device allocator and its statistics": (
        "test_memory.py::test_allocated_and_peak",
        "test_memory.py::test_reserved_and_empty_cache",
        "test_memory.py::test_stats_and_summary",
        "test_memory.py::test_accelerator_memory",
        "test_streams.py::test_record_stream",
    ),
    "Host allocator (pinned)": (
        "test_memory.py::test_pinned_memory",
        "test_memory.py::test_pinned_memory_may_be_freed_early",
    ),
    "Storage": ("test_interop.py::test_storage",),
    "Generator": (
        "test_generators.py::test_generator_object",
        "test_generators.py::test_state_round_trip",
        "test_generators.py::test_bad_state",
    ),
    "Streams, events with timing, IPC": (
        "test_streams.py::test_event_orders_and_completes",
        "test_streams.py::test_elapsed_time",
        "test_streams.py::test_streams_order_work",
        "test_checklist.py::test_streams_have_priorities_handles_and_queries",
    ),
    "Dispatch stubs": ("test_checklist.py::test_stubs", "test_checklist.py::test_sdpa"),
    "Overrideable: convolution, attention": (
        "test_library.py::test_the_library_computes_what_eager_does",
        "test_checklist.py::test_sdpa",
    ),
    "AMP policies": ("test_amp.py::test_autocast_lists", "test_amp.py::test_autocast_refuses"),
    "Profiler": (
        "test_profiler.py::test_kernels_on_the_timeline",
        "test_profiler.py::test_kernels_lie_in_the_trace",
    ),
    "Serialization": ("test_interop.py::test_save_and_load", "test_interop.py::test_pickle_and_deepcopy"),
    "Distributed backend": ("test_distributed.py::test_collectives",),
    "Capability: dtypes": ("test_devices.py::test_accelerator_is_lazy", "test_devices.py::test_properties"),
    # In Python.
    "Rename and generated methods": ("test_devices.py::test_generated_methods",),
    "The module's names": ("test_checklist.py::test_module_names", "test_devices.py::test_module_is_registered"),
    "The module's memory functions": (
        "test_memory.py::test_stats_and_summary",
        "test_memory.py::test_snapshot_names_the_lines",
        "test_memory.py::test_out_of_memory_says_what_lives",
    ),
    "torch.accelerator": (
        "test_devices.py::test_accelerator_is_lazy",
        "test_memory.py::test_accelerator_memory",
        "test_streams.py::test_stream_context",
        "test_checklist.py::test_accelerator_graph_is_refused",
    ),
    "register_package, weights_only, map_location, mmap": (
        "test_checklist.py::test_location_tags",
        "test_interop.py::test_save_and_load",
        "test_interop.py::test_state_dict_round_trip",
    ),
    "Autoload": ("test_checklist.py::test_autoload_may_be_switched_off", "test_devices.py::test_import_is_cheap"),
    "Compile: Dynamo backend and interface": (
        "test_compile.py::test_backend_lazy",
        "test_compile.py::test_no_graph_break_is_the_device_s",
        "test_compile.py::test_dynamic_shapes",
        "test_compile.py::test_other_backends",
        "test_compile.py::test_without_a_backend",
    ),
    "DeviceInterface": ("test_checklist.py::test_device_interface",),
    "Special cases: optimizers, FSDP's scaler, distributed checkpoint, torchrun, fake tensors, pinning threads": (
        "test_checklist.py::test_every_optimizer_face",
        "test_checklist.py::test_fsdp_gradient_scaler",
        "test_checklist.py::test_distributed_checkpoint",
        "test_distributed.py::test_torchrun",
        "test_compile.py::test_fake_tensors",
        "test_memory.py::test_data_loader_pins",
    ),
    "Logging": ("test_checklist.py::test_logs",),
    # Tests that a complete backend carries.
    "autocast": ("test_amp.py::test_autocast_lists", "test_amp.py::test_gpt_under_bf16_autocast"),
    "autograd": ("test_autograd.py::test_gradients_of_a_network", "test_autograd.py::test_double_backward"),
    "device_type, testing": ("test_checklist.py::test_torch_s_own_device_tests",),
    "distributed": (
        "test_distributed.py::test_ddp",
        "test_distributed.py::test_fsdp2",
        "test_distributed.py::test_dtensor",
    ),
    "opinfo, ops": ("../conformance/test_sample.py::test_a_unit_agrees_with_the_cpu",),
    "rng": ("test_generators.py::test_manual_seed", "test_generators.py::test_fork_rng"),
    "rnn": ("test_checklist.py::test_rnn",),
    "sdpa": ("test_checklist.py::test_sdpa",),
    "utils": ("test_devices.py::test_generated_methods", "test_interop.py::test_data_loader_workers"),
}
